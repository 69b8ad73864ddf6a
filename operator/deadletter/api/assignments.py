"""What a worker is told: `assignment.json` of a ConfigMap, and `live.json` that changes while it runs.

The operator writes these models, the workers read them; Secrets are mounted as files under `/secrets/<name>/<key>`.
"""
