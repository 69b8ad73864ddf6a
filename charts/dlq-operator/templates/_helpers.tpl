{{- define "dlq.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "dlq.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "dlq.name" .) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "dlq.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "dlq.selector" -}}
app.kubernetes.io/name: {{ include "dlq.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "dlq.labels" -}}
{{ include "dlq.selector" . }}
app.kubernetes.io/part-of: dlq-operator
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "dlq.serviceAccount" -}}
{{- default (include "dlq.fullname" .) .Values.serviceAccount.name }}
{{- end }}

{{- define "dlq.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}

{{/* Name of an object without a namespace. Contains the release namespace, so two releases never share a name. */}}
{{- define "dlq.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "dlq.fullname" .) | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Arguments of `kubectl create rolebinding` by which a tenant lets the operator read its Secrets. */}}
{{- define "dlq.secretsGrant" -}}
{{- $account := printf "--serviceaccount=%s:%s" .Release.Namespace (include "dlq.serviceAccount" .) }}
{{- if .Values.watchNamespaces }}
{{- printf "--role=%s-secrets %s" (include "dlq.fullname" .) $account }}
{{- else }}
{{- printf "--clusterrole=%s-secrets %s" (include "dlq.clusterName" .) $account }}
{{- end }}
{{- end }}

{{/* "true" if the webhook is served: enabled explicitly, or cluster-wide mode and not disabled. */}}
{{- define "dlq.webhook" -}}
{{- if kindIs "invalid" .Values.webhook.enabled }}
{{- if not .Values.watchNamespaces }}true{{ end }}
{{- else if .Values.webhook.enabled }}true{{ end }}
{{- end }}

{{/* Names of the pull secrets, separated by commas. */}}
{{- define "dlq.pullSecrets" -}}
{{- $names := list }}
{{- range .Values.imagePullSecrets }}{{ $names = append $names .name }}{{ end }}
{{- join "," $names }}
{{- end }}

{{/* Node selector and tolerations of all pods of the chart. Hooks need them too: without, an uninstall could wait forever for a node. */}}
{{- define "dlq.nodes" -}}
{{- with .Values.operator.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.operator.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Labels of pods of hooks. They must not match the selector of the Service. */}}
{{- define "dlq.hookLabels" -}}
app.kubernetes.io/name: {{ include "dlq.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}
