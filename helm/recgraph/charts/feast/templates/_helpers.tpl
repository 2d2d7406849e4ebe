{{- define "feast.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- printf "%s-%s" (.Release.Name | trunc (int (sub 39 (len $name))) | trimSuffix "-") $name -}}
{{- end -}}
{{- end -}}

{{- define "feast.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "feast.labels" -}}
helm.sh/chart: {{ printf "feast-%s" .Chart.Version }}
{{ include "feast.selectorLabels" . }}
app.kubernetes.io/component: jobs
app.kubernetes.io/part-of: recgraph
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "feast.claim" -}}
{{- .Values.workspace.existingClaim | default (printf "%s-workspace" (include "feast.fullname" .)) -}}
{{- end -}}

{{/* The port of a registry that is not SQLite; empty for one that is. */}}
{{- define "feast.registryPort" -}}
{{- with .Values.registry -}}
{{- if .existingSecret -}}
{{- .port -}}
{{- else if not (hasPrefix "sqlite" .url) -}}
{{- (urlParse .url).host | regexFind ":[0-9]+$" | trimPrefix ":" | default (toString .port) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The environment of a job: where offline files, registry and online store are. */}}
{{- define "feast.env" -}}
- name: RECGRAPH_OFFLINE
  value: /workspace/offline
- name: RECGRAPH_REGISTRY
  {{- if .Values.registry.existingSecret }}
  valueFrom:
    secretKeyRef:
      name: {{ .Values.registry.existingSecret }}
      key: {{ .Values.registry.key }}
  {{- else }}
  value: {{ .Values.registry.url | quote }}
  {{- end }}
{{- with .Values.redis.passwordSecret }}
- name: REDIS_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ tpl . $ }}
      key: {{ $.Values.redis.passwordKey }}
{{- end }}
- name: RECGRAPH_FEATURES_REDIS
  value: {{ include "feast.redis" . | quote }}
{{- range $name, $value := .Values.env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{- define "feast.redis" -}}
{{ ternary "rediss" "redis" .Values.redis.tls }}://
{{- if .Values.redis.passwordSecret }}:$(REDIS_PASSWORD)@{{ end -}}
{{- tpl .Values.redis.address . }}/0
{{- if .Values.redis.caSecret }}?ssl_ca_certs=/etc/redis-ca/ca.crt{{ end -}}
{{- end -}}

{{/* What every job's pod has: arguments dict root, name, command, resources, restartPolicy. */}}
{{- define "feast.pod" -}}
{{- $ := .root -}}
metadata:
  labels:
    {{- include "feast.labels" $ | nindent 4 }}
    {{- with $.Values.redis.clientLabel }}
    {{ tpl . $ }}: "true"
    {{- end }}
spec:
  restartPolicy: Never
  serviceAccountName: default
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with $.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  containers:
    - name: {{ .name }}
      image: {{ ternary (printf "%s@%s" $.Values.image.repository $.Values.image.digest) (printf "%s:%s" $.Values.image.repository $.Values.image.tag) (ne $.Values.image.digest "") | quote }}
      imagePullPolicy: {{ $.Values.image.pullPolicy }}
      workingDir: {{ $.Values.repo }}
      command:
        - sh
        - -euc
        - |
          {{- .script | nindent 10 }}
      env:
        {{- include "feast.env" $ | nindent 8 }}
      resources:
        {{- toYaml .resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
      volumeMounts:
        - name: workspace
          mountPath: /workspace
        - name: tmp
          mountPath: /tmp
        {{- if $.Values.redis.caSecret }}
        - name: redis-ca
          mountPath: /etc/redis-ca
          readOnly: true
        {{- end }}
  volumes:
    - name: workspace
      persistentVolumeClaim:
        claimName: {{ include "feast.claim" $ }}
    - name: tmp
      emptyDir: {}
    {{- with $.Values.redis.caSecret }}
    - name: redis-ca
      secret:
        secretName: {{ . }}
    {{- end }}
  {{- with $.Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $.Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $.Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
