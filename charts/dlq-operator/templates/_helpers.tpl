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

{{/* The cluster-wide name of an object outside namespaces: two releases never share one. */}}
{{- define "dlq.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "dlq.fullname" .) | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* How a tenant binds the right to read its Secrets: the end of `kubectl create rolebinding`. */}}
{{- define "dlq.secretsGrant" -}}
{{- $account := printf "--serviceaccount=%s:%s" .Release.Namespace (include "dlq.serviceAccount" .) }}
{{- if .Values.watchNamespaces }}
{{- printf "--role=%s-secrets %s" (include "dlq.fullname" .) $account }}
{{- else }}
{{- printf "--clusterrole=%s-secrets %s" (include "dlq.clusterName" .) $account }}
{{- end }}
{{- end }}

{{/* "true" when the webhook is served: asked for, or cluster-wide and not refused. */}}
{{- define "dlq.webhook" -}}
{{- if kindIs "invalid" .Values.webhook.enabled }}
{{- if not .Values.watchNamespaces }}true{{ end }}
{{- else if .Values.webhook.enabled }}true{{ end }}
{{- end }}

{{/* The names of the pull secrets, with commas. */}}
{{- define "dlq.pullSecrets" -}}
{{- $names := list }}
{{- range .Values.imagePullSecrets }}{{ $names = append $names .name }}{{ end }}
{{- join "," $names }}
{{- end }}

{{/* Where pods of the chart may run; those of a hook too, or an uninstall would wait for a node in vain. */}}
{{- define "dlq.nodes" -}}
{{- with .Values.operator.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.operator.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The labels of a pod that only a hook runs: none that the Service selects by. */}}
{{- define "dlq.hookLabels" -}}
app.kubernetes.io/name: {{ include "dlq.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}
