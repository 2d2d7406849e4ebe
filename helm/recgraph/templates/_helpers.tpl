{{- define "recgraph.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 25 | trimSuffix "-" -}}
{{- end -}}

{{- define "recgraph.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains (include "recgraph.name" .) .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "recgraph.name" .) -}}
{{- end -}}
{{- end -}}

{{- define "recgraph.selectorLabels" -}}
app.kubernetes.io/name: {{ include "recgraph.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "recgraph.labels" -}}
helm.sh/chart: {{ printf "recgraph-%s" .Chart.Version }}
{{ include "recgraph.selectorLabels" . }}
app.kubernetes.io/part-of: recgraph
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "recgraph.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (ternary (include "recgraph.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{/* An image of the values: a digest goes before a tag, a tag before the chart's appVersion. */}}
{{- define "recgraph.image" -}}
{{- $tag := .image.tag | default .root.Chart.AppVersion -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository $tag -}}
{{- end -}}
{{- end -}}

{{- define "recgraph.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "recgraph.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "recgraph.bundlesClaim" -}}
{{- .Values.bundles.volume.existingClaim | default (printf "%s-bundles" (include "recgraph.fullname" .)) -}}
{{- end -}}

{{/* The URI of the folder with a folder per version. */}}
{{- define "recgraph.bundlesUri" -}}
{{- .Values.bundles.uri | default (printf "pvc://%s" (include "recgraph.bundlesClaim" .)) | trimSuffix "/" -}}
{{- end -}}

{{/* Name of the Redis that holds "features" or "caches", where the chart runs it. */}}
{{- define "recgraph.redisName" -}}
{{- $alias := printf "redis-%s" .which -}}
{{- $values := index .root.Values $alias -}}
{{- include "redis.fullname" (dict "Values" $values "Release" .root.Release "Chart" (dict "Name" $alias)) -}}
{{- end -}}

{{/* Environment with the URL of a Redis as RECGRAPH_<WHICH>_REDIS: arguments dict root, which. */}}
{{- define "recgraph.redisEnv" -}}
{{- $own := index .root.Values (printf "redis-%s" .which) -}}
{{- $external := index .root.Values.externalRedis .which -}}
{{- $name := upper .which -}}
{{- $secret := "" -}}{{- $key := "" -}}{{- $url := "" -}}
{{- if $own.enabled -}}
{{- $secret = $own.auth.existingSecret | default (include "recgraph.redisName" .) -}}
{{- $key = $own.auth.key -}}
{{- $url = printf "%s:6379/0" (include "recgraph.redisName" .) -}}
{{- else -}}
{{- $secret = $external.passwordSecret -}}
{{- $key = $external.passwordKey -}}
{{- $url = printf "%s/0" $external.address -}}
{{- end -}}
{{- $scheme := ternary "rediss" "redis" (and (not $own.enabled) $external.tls) -}}
{{- $query := ternary (printf "?ssl_ca_certs=/etc/redis-%s-ca/ca.crt" .which) "" (and (not $own.enabled) (ne $external.caSecret "")) -}}
{{- if $secret }}
- name: REDIS_{{ $name }}_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ $secret }}
      key: {{ $key }}
- name: RECGRAPH_{{ $name }}_REDIS
  value: {{ printf "%s://:$(REDIS_%s_PASSWORD)@%s%s" $scheme $name $url $query | quote }}
{{- else }}
- name: RECGRAPH_{{ $name }}_REDIS
  value: {{ printf "%s://%s%s" $scheme $url $query | quote }}
{{- end }}
{{- end -}}

{{/* Labels that let a pod through the network policies of the chart's own Redis. */}}
{{- define "recgraph.redisClientLabels" -}}
{{- $root := . -}}
{{- range $which := list "features" "caches" }}
{{- if (index $root.Values (printf "redis-%s" $which)).enabled }}
{{ include "recgraph.redisName" (dict "root" $root "which" $which) }}-client: "true"
{{- end }}
{{- end }}
{{- end -}}
