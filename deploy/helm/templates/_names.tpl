{{- define "turnwire.name" -}}
{{- if contains "turnwire" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-turnwire" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "turnwire.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "turnwire.selector" -}}
app.kubernetes.io/name: turnwire
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .service }}
{{- end -}}

{{- define "turnwire.labels" -}}
{{ include "turnwire.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "turnwire.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "turnwire.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Which keys of the secret a service is given, as files; nobody is given another's. */}}
{{- define "turnwire.secretKeys" -}}
{{ .hyphened }}-database-url
redis-url
{{- if has .service (list "frontend_gateway" "ingestion" "ops") }}
door-master-key
{{- end }}
{{- if eq .service "llm_gateway" }}
llm-api-key
{{- end }}
{{- if hasPrefix "SASL" .root.Values.kafka.securityProtocol }}
kafka-password
{{- end }}
{{- end -}}

{{/* What the gateway calls itself towards clients; empty if nobody said. */}}
{{- define "turnwire.publicUrl" -}}
{{- if .Values.gateway.publicUrl -}}
{{- .Values.gateway.publicUrl -}}
{{- else if .Values.ingress.enabled -}}
{{- printf "%s://%s" (ternary "https" "http" (ne .Values.ingress.tlsSecret "")) .Values.ingress.host -}}
{{- end -}}
{{- end -}}

{{/* Where spans go; nothing if nowhere. */}}
{{- define "turnwire.tracingEnv" -}}
{{- with .Values.tracing.endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- with .Values.tracing.optIn }}
- name: OTEL_SEMCONV_STABILITY_OPT_IN
  value: {{ . | quote }}
{{- end }}
{{- if .Values.tracing.headersInSecret }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom:
    secretKeyRef: {name: {{ .Values.existingSecret }}, key: otlp-headers}
{{- end }}
{{- end -}}

{{/* Host names that the gateway answers for, as a JSON list. */}}
{{- define "turnwire.allowedHosts" -}}
{{- $name := include "turnwire.name" . -}}
{{- $inside := printf "%s.%s" $name .Release.Namespace -}}
{{- $hosts := list "127.0.0.1" "localhost" "[::1]" $name $inside (printf "%s.svc" $inside) (printf "%s.svc.cluster.local" $inside) -}}
{{- with include "turnwire.publicUrl" . -}}
{{- $hosts = append $hosts (regexReplaceAll ":[0-9]+$" (urlParse .).host "") -}}
{{- end -}}
{{- if .Values.ingress.enabled -}}
{{- $hosts = append $hosts .Values.ingress.host -}}
{{- end -}}
{{- concat $hosts .Values.gateway.hosts | uniq | toJson -}}
{{- end -}}

{{/* Port of a URL. */}}
{{- define "turnwire.portOf" -}}
{{- $url := urlParse . -}}
{{- regexFind ":[0-9]+$" $url.host | trimPrefix ":" | default (ternary "443" "80" (eq $url.scheme "https")) -}}
{{- end -}}

{{/* Where a service may connect to: DNS, the parts, and what only some of them ask. */}}
{{- define "turnwire.egress" -}}
{{- $values := .root.Values -}}
{{- $policy := $values.networkPolicy -}}
{{- $brokers := list -}}
{{- range splitList "," $values.kafka.bootstrapServers -}}
{{- $brokers = append $brokers (regexFind "[0-9]+$" .) -}}
{{- end -}}
{{- $targets := list (list $policy.postgres list) (list $policy.kafka $brokers) (list $policy.redis list) -}}
{{- if $values.tracing.endpoint -}}
{{- $targets = append $targets (list $policy.collector (list (include "turnwire.portOf" $values.tracing.endpoint))) -}}
{{- end -}}
{{- if eq .service "llm_gateway" -}}
{{- $targets = append $targets (list $policy.provider (list (include "turnwire.portOf" $values.llm.baseUrl))) -}}
{{- end -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
{{- range $targets }}
{{- $ports := index . 1 }}
{{- range (index . 0).ports }}
{{- $ports = append $ports (toString .) }}
{{- end }}
- ports:
    {{- range $ports | uniq }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  {{- with (index . 0).to }}
  to: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Variable of a key. */}}
{{- define "turnwire.secretVariable" -}}
{{- if hasSuffix "-database-url" .key -}}TURNWIRE_{{ .service | upper }}__DATABASE_URL_FILE
{{- else if eq .key "kafka-password" -}}TURNWIRE_{{ .service | upper }}__KAFKA_PASSWORD_FILE
{{- else if eq .key "door-master-key" -}}TURNWIRE_DOOR_MASTER_KEY_FILE
{{- else -}}{{ .key | replace "-" "_" | upper }}_FILE
{{- end -}}
{{- end -}}

{{- define "turnwire.kafkaEnv" -}}
- name: KAFKA_BOOTSTRAP_SERVERS
  value: {{ .root.Values.kafka.bootstrapServers | quote }}
- name: TURNWIRE_{{ .service | upper }}__KAFKA_SECURITY_PROTOCOL
  value: {{ .root.Values.kafka.securityProtocol | quote }}
{{- if hasPrefix "SASL" .root.Values.kafka.securityProtocol }}
- name: TURNWIRE_{{ .service | upper }}__KAFKA_SASL_MECHANISM
  value: {{ .root.Values.kafka.saslMechanism | quote }}
- name: TURNWIRE_{{ .service | upper }}__KAFKA_USERNAME
  value: {{ .root.Values.kafka.username | quote }}
{{- end }}
{{- end -}}
