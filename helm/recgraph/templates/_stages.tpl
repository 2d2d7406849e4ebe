{{/*
The stages: names, arms, and the pods of one component.
A component is a stage's transformer or predictor. entry has a predictor only and is shared by all arms.
*/}}

{{- define "recgraph.isvc" -}}
{{- $full := include "recgraph.fullname" .root -}}
{{- if eq .stage "entry" -}}{{ $full }}-entry{{- else -}}{{ printf "%s-%s-%s" $full .stage .bundle }}{{- end -}}
{{- end -}}

{{/* The bundle that serves `stage` in `arm`. Without a canary, or where it does not cover the stage, both arms are stable. */}}
{{- define "recgraph.armBundle" -}}
{{- $c := .root.Values.canary -}}
{{- if and (eq .arm "canary") $c.bundle (or (has "cascade" $c.layers) (has .stage $c.layers)) -}}
{{- $c.bundle -}}
{{- else -}}
{{- .root.Values.bundles.stable -}}
{{- end -}}
{{- end -}}

{{/* One component's values over the defaults, as YAML. */}}
{{- define "recgraph.componentValues" -}}
{{- $defaults := deepCopy .root.Values.stageDefaults -}}
{{- if include "recgraph.hasModel" (dict "stage" .stage.name "kind" .kind) -}}
{{- $defaults = mergeOverwrite $defaults (deepCopy .root.Values.predictorDefaults) -}}
{{- end -}}
{{- toYaml (mergeOverwrite $defaults (deepCopy (get .stage .kind | default dict))) -}}
{{- end -}}

{{/* Not empty for a component that runs a model: every predictor but entry's. */}}
{{- define "recgraph.hasModel" -}}
{{- if and (eq .kind "predictor") (ne .stage "entry") }}true{{ end -}}
{{- end -}}

{{- define "recgraph.stageLabels" -}}
{{ include "recgraph.selectorLabels" .root }}
app.kubernetes.io/component: stage
recgraph.io/stage: {{ .stage }}
recgraph.io/role: {{ .kind }}
{{- if ne .stage "entry" }}
recgraph.io/bundle: {{ .bundle | quote }}
{{- end }}
{{- end -}}

{{/*
Waits, unready, until the bundle is there, then becomes the process. The startup probe bounds the wait.
entry has no bundle: the arms tell it which ones there are, so that no release step restarts it. Argument: the stage.
*/}}
{{- define "recgraph.start" -}}
{{- if ne . "entry" -}}
trap 'exit 143' TERM
until [ -f "$RECGRAPH_BUNDLE/manifest.json" ]; do
  [ -n "${waiting:-}" ] || echo "waiting for the bundle at $RECGRAPH_BUNDLE"
  waiting=1
  sleep 1 & wait $!
done
trap - TERM
{{ end -}}
exec python -P -m "$0" "$@"
{{- end -}}

{{- define "recgraph.stageEnv" -}}
{{- $root := .root -}}
{{- $uri := include "recgraph.bundlesUri" $root -}}
{{- if eq .stage "entry" }}
- name: RECGRAPH_ARMS
  value: /etc/recgraph/arms/arms.json
{{- include "recgraph.redisEnv" (dict "root" $root "which" "caches") }}
{{- else if hasPrefix "pvc://" $uri }}
- name: STORAGE_URI
  value: {{ $uri | quote }}
- name: RECGRAPH_BUNDLE
  value: /mnt/models/{{ .bundle }}
{{- else }}
- name: STORAGE_URI
  value: {{ printf "%s/%s" $uri .bundle | quote }}
- name: RECGRAPH_BUNDLE
  value: /mnt/models
{{- end }}
- name: RECGRAPH_SCENES
  value: /etc/recgraph/scenes/scenes.yaml
{{- if eq .kind "transformer" }}
{{- include "recgraph.redisEnv" (dict "root" $root "which" "features") }}
{{- include "recgraph.redisEnv" (dict "root" $root "which" "caches") }}
{{- end }}
- name: RECGRAPH_READER
  value: {{ $root.Values.settings.reader }}
- name: RECGRAPH_CLOCK_OFFSET_S
  value: {{ $root.Values.settings.clockOffsetSeconds | int64 | quote }}
- name: RECGRAPH_LOG_LEVEL
  value: {{ $root.Values.settings.logLevel }}
- name: RECGRAPH_RECORD_SAMPLE
  value: {{ $root.Values.settings.recordSample | quote }}
{{- range $name, $ms := $root.Values.settings.budgets }}
- name: RECGRAPH_BUDGETS__{{ upper $name }}
  value: {{ $ms | quote }}
{{- end }}
{{- if include "recgraph.hasModel" . }}
- name: RECGRAPH_TORCH_THREADS
  value: {{ .values.threadsPerWorker | quote }}
- name: OMP_NUM_THREADS
  value: {{ .values.threadsPerWorker | quote }}
- name: RECGRAPH_EXECUTOR_WORKERS
  value: {{ .values.workers | quote }}
{{- else }}
- name: OMP_NUM_THREADS
  value: "1"
{{- end }}
- name: RECGRAPH_MAX_IN_FLIGHT
  value: {{ .values.maxInFlight | quote }}
- name: RECGRAPH_DRAIN_S
  value: {{ .values.drainSeconds | quote }}
{{- range $name, $value := .values.env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{/* spec.predictor or spec.transformer: arguments dict root, stage (its values), kind, bundle. */}}
{{- define "recgraph.component" -}}
{{- $root := .root -}}
{{- $name := .stage.name -}}
{{- $values := include "recgraph.componentValues" . | fromYaml -}}
{{- $isvc := include "recgraph.isvc" (dict "root" $root "stage" $name "bundle" .bundle) -}}
{{- $arguments := dict "root" $root "stage" $name "kind" .kind "bundle" .bundle "values" $values -}}
{{- $grpc := include "recgraph.hasModel" (dict "stage" $name "kind" .kind) -}}
minReplicas: {{ $values.replicas }}
maxReplicas: {{ max $values.replicas $values.autoscaling.maxReplicas }}
{{- if $values.autoscaling.maxReplicas }}
scaleMetric: cpu
scaleTarget: {{ $values.autoscaling.targetCPU }}
{{- end }}
labels:
  {{- include "recgraph.stageLabels" $arguments | nindent 2 }}
  {{- if or (eq .kind "transformer") (eq $name "entry") }}
  {{- with include "recgraph.redisClientLabels" $root | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- end }}
  {{- with $values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  {{- if $root.Values.monitoring.annotations }}
  prometheus.io/scrape: "true"
  prometheus.io/port: "8080"
  prometheus.io/path: /metrics
  {{- end }}
  {{- with $values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
deploymentStrategy:
  type: RollingUpdate
  rollingUpdate:
    {{- toYaml $values.rollingUpdate | nindent 4 }}
serviceAccountName: {{ include "recgraph.serviceAccountName" $root }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "recgraph.podSecurityContext" $root | nindent 2 }}
{{- if $values.spread }}
topologySpreadConstraints:
  {{- range $key, $when := dict "kubernetes.io/hostname" "ScheduleAnyway" "topology.kubernetes.io/zone" "ScheduleAnyway" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: {{ $when }}
    labelSelector:
      matchLabels:
        app: isvc.{{ $isvc }}-{{ $.kind }}
  {{- end }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
containers:
  - name: kserve-container
    image: {{ include "recgraph.image" (dict "root" $root "image" $root.Values.image) | quote }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    command:
      - sh
      - -euc
      - |
        {{- include "recgraph.start" $name | nindent 8 }}
      - recgraph_{{ .kind }}s.{{ $name }}
    args:
      - --model_name={{ $name }}
      - --http_port=8080
      {{- if $grpc }}
      - --grpc_port=8081
      {{- else if eq .kind "transformer" }}
      - --predictor_host={{ $isvc }}-grpc:8081
      {{- end }}
    ports:
      - name: http1
        containerPort: 8080
        protocol: TCP
      {{- if $grpc }}
      - name: h2c
        containerPort: 8081
        protocol: TCP
      {{- end }}
    env:
      {{- include "recgraph.stageEnv" $arguments | trim | nindent 6 }}
    startupProbe:
      httpGet:
        path: /v1/models/{{ $name }}
        port: 8080
      periodSeconds: 2
      timeoutSeconds: 2
      failureThreshold: {{ div $values.startupSeconds 2 }}
    readinessProbe:
      httpGet:
        path: /v1/models/{{ $name }}
        port: 8080
      {{- toYaml $values.readinessProbe | nindent 6 }}
    livenessProbe:
      httpGet:
        path: /v2/health/live
        port: 8080
      {{- toYaml $values.livenessProbe | nindent 6 }}
    {{- if $values.preStopSeconds }}
    lifecycle:
      preStop:
        exec:
          command: [sleep, {{ $values.preStopSeconds | quote }}]
    {{- end }}
    resources:
      {{- toYaml $values.resources | nindent 6 }}
    securityContext:
      {{- include "recgraph.securityContext" $root | nindent 6 }}
    volumeMounts:
      - name: tmp
        mountPath: /tmp
      - name: scenes
        mountPath: /etc/recgraph/scenes
        readOnly: true
      {{- if eq $name "entry" }}
      - name: arms
        mountPath: /etc/recgraph/arms
        readOnly: true
      {{- end }}
      {{- with include "recgraph.caMounts" $arguments | trim }}
      {{- . | nindent 6 }}
      {{- end }}
volumes:
  - name: tmp
    emptyDir: {}
  - name: scenes
    configMap:
      name: {{ include "recgraph.fullname" $root }}-scenes
  {{- if eq $name "entry" }}
  - name: arms
    configMap:
      name: {{ include "recgraph.fullname" $root }}-arms
  {{- end }}
  {{- with include "recgraph.caVolumes" $arguments | trim }}
  {{- . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* The Redis whose certificate authority a component must know: list of "features", "caches". */}}
{{- define "recgraph.caList" -}}
{{- $found := list -}}
{{- $root := .root -}}
{{- $uses := ternary (list "features" "caches") (ternary (list "caches") list (eq .stage "entry")) (eq .kind "transformer") -}}
{{- range $which := $uses -}}
{{- if and (not (index $root.Values (printf "redis-%s" $which)).enabled) (index $root.Values.externalRedis $which).caSecret -}}
{{- $found = append $found $which -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- define "recgraph.caMounts" -}}
{{- range $which := include "recgraph.caList" . | fromJsonArray }}
- name: redis-{{ $which }}-ca
  mountPath: /etc/redis-{{ $which }}-ca
  readOnly: true
{{- end }}
{{- end -}}

{{- define "recgraph.caVolumes" -}}
{{- $root := .root -}}
{{- range $which := include "recgraph.caList" . | fromJsonArray }}
- name: redis-{{ $which }}-ca
  secret:
    secretName: {{ (index $root.Values.externalRedis $which).caSecret }}
{{- end }}
{{- end -}}
