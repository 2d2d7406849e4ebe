{{- define "redis.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- /* Of a long release name as much as leaves room for the rest, which tells two of these apart. */ -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- printf "%s-%s" (.Release.Name | trunc (int (sub 51 (len $name))) | trimSuffix "-") $name -}}
{{- end -}}
{{- end -}}

{{- define "redis.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "redis.labels" -}}
helm.sh/chart: {{ printf "redis-%s" .Chart.Version }}
{{ include "redis.selectorLabels" . }}
app.kubernetes.io/component: redis
app.kubernetes.io/part-of: recgraph
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* Bytes of a size: a number and its unit of the dict. */}}
{{- define "redis.bytes" -}}
{{- $unit := regexFind "[A-Za-z]*$" .size -}}
{{- printf "%.0f" (mulf (trimSuffix $unit .size | float64) (get .units $unit)) -}}
{{- end -}}

{{- define "redis.secretName" -}}
{{- .Values.auth.existingSecret | default (include "redis.fullname" .) -}}
{{- end -}}
