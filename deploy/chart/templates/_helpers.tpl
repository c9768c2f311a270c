{{/* What several templates need. Names do not follow the release's: a node has room for one agent
     (its ports, interfaces and pins), so a cluster has room for one release with the shared objects. The Services
     pathproof-sentinel and pathproof-echo, the sentinel's slices and the Lease are never renamed: agents
     and rotators find them by these names. */}}

{{- define "pathproof.image" -}}
{{- $registry := .Values.global.imageRegistry | default .Values.image.registry -}}
{{- list $registry .Values.image.repository | compact | join "/" -}}
{{- if .Values.image.digest -}}
@{{ .Values.image.digest }}
{{- else -}}
:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "pathproof.fullname" -}}
{{- $own := .Values.shared.create | ternary "pathproof" .Release.Name -}}
{{- .Values.fullnameOverride | default .Values.nameOverride | default $own | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* Without the shared objects the agents use the account of the first release, whose rights and policies name
     it. */}}
{{- define "pathproof.agentAccount" -}}
{{- $own := .Values.shared.create | ternary (include "pathproof.fullname" .) "pathproof" -}}
{{- .Values.agent.serviceAccount.name | default (printf "%s-agent" $own) -}}
{{- end }}

{{- define "pathproof.rotatorAccount" -}}
{{- .Values.rotator.serviceAccount.name | default (printf "%s-rotator" (include "pathproof.fullname" .)) -}}
{{- end }}

{{/* Labels that select pods. They never change: selectors of a DaemonSet and a Deployment are immutable,
     and `kubectl pathproof`, the alerts and the dashboard select by them. */}}
{{- define "pathproof.selector" -}}
app.kubernetes.io/name: pathproof
app.kubernetes.io/component: {{ . }}
{{- end }}

{{/* Labels of the release that pods have as well: they change with a version of the agent alone. */}}
{{- define "pathproof.releaseLabels" -}}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | quote }}
{{- end }}

{{/* Labels and annotations of an object: context, component or "", own labels, own annotations. */}}
{{- define "pathproof.metadata" -}}
{{- $root := index . 0 -}}
{{- $ours := dict "app.kubernetes.io/name" "pathproof" -}}
{{- with index . 1 }}{{ $ours = fromYaml (include "pathproof.selector" .) }}{{ end -}}
{{- $release := dict
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_")
  "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- $own := dict -}}
{{- if gt (len .) 2 }}{{ $own = index . 2 | default dict }}{{ end -}}
{{- $annotations := dict -}}
{{- if gt (len .) 3 }}{{ $annotations = index . 3 | default dict }}{{ end -}}
labels:
  {{- merge $ours $release (fromYaml (include "pathproof.releaseLabels" $root)) $own $root.Values.commonLabels | toYaml | nindent 2 }}
{{- with merge (dict) $annotations $root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The same of pods: context, component, its values, and own annotations. */}}
{{- define "pathproof.podMetadata" -}}
{{- $root := index . 0 -}}
{{- $values := index . 2 -}}
{{- $annotations := dict -}}
{{- if gt (len .) 3 }}{{ $annotations = index . 3 }}{{ end -}}
labels:
  {{- merge (fromYaml (include "pathproof.selector" (index . 1))) (fromYaml (include "pathproof.releaseLabels" $root)) $values.podLabels $root.Values.commonLabels | toYaml | nindent 2 }}
{{- with merge (dict) $annotations $values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Settings of all pods: the secrets to pull images with, and name resolution. */}}
{{- define "pathproof.podSettings" -}}
{{- with concat (.Values.global.imagePullSecrets | default list) .Values.imagePullSecrets -}}
imagePullSecrets:
{{- range . }}
  - name: {{ if kindIs "string" . }}{{ quote . }}{{ else }}{{ quote .name }}{{ end }}
{{- end }}
{{ end }}
{{- with .Values.dnsConfig -}}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{ end }}
{{- with .Values.hostAliases -}}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{ end }}
{{- end }}

{{/* A level becomes a filter as the binary's default is; anything else is a filter already. */}}
{{- define "pathproof.logFilter" -}}
{{- if and . (ne . "info") -}}
--log-filter={{ . }}{{ if regexMatch "^[a-z]+$" . }},kube_client=off{{ end }}
{{- end -}}
{{- end }}

{{/* What the installation is for. */}}
{{- define "pathproof.profile" -}}
{{- .Values.profile | default "beside-kube-proxy" -}}
{{- end }}

{{/* Whether the agents are pods of this release. */}}
{{- define "pathproof.agents" -}}
{{- if ne (include "pathproof.profile" .) "rke1" }}true{{ end -}}
{{- end }}

{{/* Whether the sentinel's Service and its rotator, which creates the EndpointSlices, are part of this
     release. */}}
{{- define "pathproof.rotator" -}}
{{- if and .Values.shared.create .Values.sentinel.enabled }}true{{ end -}}
{{- end }}

{{/* Whether the rotator's metrics are scraped. */}}
{{- define "pathproof.rotatorMetrics" -}}
{{- if and (include "pathproof.rotator" .) .Values.rotator.metricsPort }}true{{ end -}}
{{- end }}

{{/* Value of the label job of the agents' series. */}}
{{- define "pathproof.job" -}}
{{- .Values.metrics.job | default "pathproof" -}}
{{- end }}

{{/* Rules or the dashboard, with the labels of the user's Prometheus: context, text. */}}
{{- define "pathproof.relabelled" -}}
{{- $label := (index . 0).Values.metrics.clusterLabel | default "cluster" }}
{{- $text := index . 1 | replace "job=\"pathproof" (printf "job=\"%s" (include "pathproof.job" (index . 0))) }}
{{- range list "by (%s" "on (%s" "{%s=~" "$labels.%s" "build_info, %s)" "\"%s\": " }}
{{- $text = replace (printf . "cluster") (printf . $label) $text }}
{{- end }}
{{- $text }}
{{- end }}

{{/* Whether the pod probe is part of this release. */}}
{{- define "pathproof.echo" -}}
{{- if and .Values.shared.create .Values.echo.enabled .Values.sentinel.enabled (eq .Values.agent.view "full") }}true{{ end -}}
{{- end }}

{{/* Whether the user chose the agents' nodes. */}}
{{- define "pathproof.choosesNodes" -}}
{{- $default := .Files.Get "files/agent-defaults.yaml" | fromYaml }}
{{- range list "nodeSelector" "affinity" }}
{{- if ne (toJson (get $.Values.agent .)) (toJson (get $default .)) }}true{{ end }}
{{- end }}
{{- end }}

{{- define "pathproof.portTakeover" -}}
{{- .Values.agent.portTakeover | default (eq (include "pathproof.profile" .) "standalone" | ternary "bind" "steer") -}}
{{- end }}

{{/* What translates Service traffic, as the profile has it; empty where nothing is declared. */}}
{{- define "pathproof.datapath" -}}
{{- $declared := get (dict "beside-kube-proxy" "kube-proxy" "cilium" "cilium") (include "pathproof.profile" .) -}}
{{- .Values.agent.datapath | default $declared | replace "none" "" -}}
{{- end }}

{{/* Fields that Kubernetes knows since 1.30. */}}
{{- define "pathproof.since130" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}true{{ end -}}
{{- end }}

{{/* The function ip() in policies. */}}
{{- define "pathproof.since131" -}}
{{- if semverCompare ">=1.31.0-0" .Capabilities.KubeVersion.Version }}true{{ end -}}
{{- end }}

{{/* Whether the API server restricts what each agent writes. */}}
{{- define "pathproof.policy" -}}
{{- if and .Values.policy.enabled (include "pathproof.since130" .) }}true{{ end -}}
{{- end }}

{{/* Whether agents may write about Nodes. */}}
{{- define "pathproof.publishes" -}}
{{- if or (include "pathproof.policy" .) .Values.agent.publishWithoutPolicy }}true{{ end -}}
{{- end }}

{{/* Lists in expressions of policies. */}}
{{- define "pathproof.endpointIPs" -}}
{{- with .Values.sentinel }}[{{ .endpointIPv4 | quote }}, {{ .endpointIPv6 | quote }}]{{ end -}}
{{- end }}

{{- define "pathproof.sentinelIPs" -}}
{{- with .Values.sentinel -}}
[{{ .clientIPv4 | quote }}, {{ .endpointIPv4 | quote }}, {{ .clientIPv6 | quote }}, {{ .endpointIPv6 | quote }}]
{{- end }}
{{- end }}

{{/* kube-proxy's health port, ours where it is another one, and the admin port. */}}
{{- define "pathproof.reservedPorts" -}}
{{- list "10256" (include "pathproof.healthzPort" .) (toString (int .Values.agent.admin.port)) | uniq | join ", " -}}
{{- end }}

{{/* Without a port in the address, and where nothing is served, 10256. */}}
{{- define "pathproof.healthzPort" -}}
{{- regexFind "[0-9]+$" (regexFind ":[0-9]+$" .Values.agent.healthzBindAddress) | default "10256" -}}
{{- end }}

{{/* Options of the sentinel that differ from the binary's defaults, for the agent and the rotator. */}}
{{- define "pathproof.sentinelArgs" -}}
{{- with .Values.sentinel }}
{{- if not .enabled }}
- --sentinel=off
{{- else }}
{{- if ne $.Release.Namespace "pathproof" }}
- "--sentinel-service={{ $.Release.Namespace }}/pathproof-sentinel"
{{- end }}
{{- if or (ne .clientIPv4 "198.18.0.1") (ne .clientIPv6 "2001:2::1") }}
- "--sentinel-client-address={{ .clientIPv4 }},{{ .clientIPv6 }}"
{{- end }}
{{- if or (ne .endpointIPv4 "198.18.0.2") (ne .endpointIPv6 "2001:2::2") }}
- "--sentinel-endpoint-address={{ .endpointIPv4 }},{{ .endpointIPv6 }}"
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* An agent that only reports must refuse nobody's write. */}}
{{- define "pathproof.reservedActions" -}}
{{- if or .Values.policy.refuse (eq .Values.agent.enforcement "enforce") }}["Deny"]{{ else }}["Warn", "Audit"]{{ end }}
{{- end }}

{{/* The agent's command line: what differs from the binary's defaults, and the mode, which other versions may
have another default for. */}}
{{- define "pathproof.agentArgs" -}}
- run
{{- with .Values.agent }}
- "--enforcement={{ .enforcement }}"
{{- with .enforceNodes }}
- "--enforce-nodes={{ . }}"
{{- end }}
{{- with include "pathproof.datapath" $ }}
- "--datapath={{ . }}"
{{- end }}
{{- if eq (include "pathproof.portTakeover" $) "bind" }}
- --port-takeover=bind
{{- end }}
{{- if ne .unknownPolicy "open" }}
- "--unknown-policy={{ .unknownPolicy }}"
{{- end }}
{{- if ne .families "used" }}
- "--families={{ .families }}"
{{- end }}
{{- if ne .view "full" }}
- "--view={{ .view }}"
{{- end }}
{{- if ne .healthzBindAddress "0.0.0.0:10256" }}
- "--healthz-bind-address={{ .healthzBindAddress }}"
{{- end }}
{{- if ne .healthCheckNodePorts "30000-32767" }}
- "--health-check-node-ports={{ .healthCheckNodePorts }}"
{{- end }}
{{- with .healthzAllowCidrs }}
- "--healthz-allow-cidr={{ join `,` . }}"
{{- end }}
{{- if .admin.allowCidrs }}
- "--admin-bind-address=0.0.0.0:{{ .admin.port }}"
- "--admin-allow-cidr=127.0.0.1,::1,{{ join `,` .admin.allowCidrs }}"
{{- else if ne (int .admin.port) 19256 }}
- "--admin-bind-address=127.0.0.1:{{ .admin.port }}"
{{- end }}
{{- if ne .serviceMetrics "trouble" }}
- "--service-metrics={{ .serviceMetrics }}"
{{- end }}
{{- with .drainIgnoreCidrs }}
- "--drain-ignore-cidr={{ join `,` . }}"
{{- end }}
{{- with .terminatingTaints }}
- "--terminating-taint={{ join `,` . }}"
{{- end }}
{{- if not (and .publishCondition (include "pathproof.publishes" $)) }}
- --publish-condition=off
{{- end }}
{{- if not (and .publishEvents (include "pathproof.publishes" $)) }}
- --publish-events=off
{{- end }}
{{- if ne .flapDwell "10s" }}
- "--flap-dwell={{ .flapDwell }}"
{{- end }}
{{- if ne .logFormat "text" }}
- "--log-format={{ .logFormat }}"
{{- end }}
{{- with include "pathproof.logFilter" .logLevel }}
- {{ . | quote }}
{{- end }}
{{- include "pathproof.sentinelArgs" $ }}
{{- range .extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* The rotator's command line. */}}
{{- define "pathproof.rotatorArgs" -}}
- rotate
{{- if ne (int .Values.rotator.interval) 15 }}
- "--interval={{ .Values.rotator.interval }}"
{{- end }}
{{- include "pathproof.sentinelArgs" . }}
{{- with .Values.rotator }}
{{- with include "pathproof.logFilter" .logLevel }}
- {{ . | quote }}
{{- end }}
{{- with .brakeBy }}
- "--brake-by={{ join `,` . }}"
{{- end }}
{{- with .metricsPort }}
- "--metrics-bind-address=0.0.0.0:{{ . }}"
{{- end }}
{{- if ne .withdraw "off" }}
- "--withdraw={{ .withdraw }}"
{{- if ne .withdrawAfter "1m" }}
- "--withdraw-after={{ .withdrawAfter }}"
{{- end }}
{{- end }}
{{- end }}
{{- end }}
