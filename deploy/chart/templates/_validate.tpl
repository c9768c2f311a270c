{{/* Values that contradict each other: one sentence that names both, and the remedy. */}}
{{- define "pathproof.validate" -}}
{{- $home := .Values.home }}
{{- $agent := .Values.agent }}
{{- $admin := $agent.admin }}
{{- $metrics := .Values.metrics }}
{{- if eq $home "rke1" }}
{{- $here := "is an option of the agent, and with home=rke1 the agent is RKE's own kube-proxy container: give it in cluster.yml (services.kubeproxy.extra_env, as its PATHPROOF_ variable), and leave the value alone" }}
{{- if $agent.portTakeover }}
{{- fail (printf "agent.portTakeover=%s %s" $agent.portTakeover $here) }}
{{- end }}
{{- if $agent.datapath }}
{{- fail (printf "agent.datapath=%s %s" $agent.datapath $here) }}
{{- end }}
{{- if ne $agent.enforcement "audit" }}
{{- fail (printf "agent.enforcement=%s %s" $agent.enforcement $here) }}
{{- end }}
{{- if $admin.allowCidrs }}
{{- fail (printf "agent.admin.allowCidrs %s" $here) }}
{{- end }}
{{- if $agent.extraArgs }}
{{- fail (printf "agent.extraArgs %s" $here) }}
{{- end }}
{{- if $metrics.podMonitor.enabled }}
{{- fail "metrics.podMonitor.enabled=true and home=rke1 contradict each other: a PodMonitor finds pods, and there the agents are RKE's own containers; scrape the nodes with a ScrapeConfig as deploy/README.md has it, or set metrics.podMonitor.enabled=false" }}
{{- end }}
{{- if not (or .Values.sentinel.enabled .Values.rotator.enabled) }}
{{- fail "home=rke1 with sentinel.enabled=false and rotator.enabled=false installs nothing: with RKE1 this chart brings these two alone; enable them, or uninstall the chart" }}
{{- end }}
{{- end }}
{{- if and (ne .Values.rotator.withdraw "off") .Values.rotator.enabled (not (include "pathproof.policy" .)) }}
{{- fail "rotator.withdraw=label needs the policy that keeps the rotator's right to patch Nodes to one label: set policy.enabled=true on Kubernetes 1.30 or newer, or rotator.withdraw=off" }}
{{- end }}
{{- if and (eq $home "beside-kube-proxy") (eq $agent.portTakeover "bind") }}
{{- fail "agent.portTakeover=bind and home=beside-kube-proxy contradict each other: kube-proxy holds port 10256 there; leave agent.portTakeover empty, or set home=standalone where kube-proxy does not run or was given another healthzBindAddress" }}
{{- end }}
{{- if and (eq $home "standalone") (eq $agent.portTakeover "steer") }}
{{- fail "agent.portTakeover=steer and home=standalone contradict each other: steering leaves the port to whoever holds it, and standalone says that nobody does; leave agent.portTakeover empty, or set home=beside-kube-proxy or home=cilium" }}
{{- end }}
{{- if and $metrics.podMonitor.enabled (not $admin.allowCidrs) (ne $home "rke1") }}
{{- fail "metrics.podMonitor.enabled=true and an empty agent.admin.allowCidrs contradict each other: the admin port is bound to loopback, where Prometheus cannot reach it; give agent.admin.allowCidrs the range that Prometheus asks from, such as the pods' (agent.admin.allowCidrs={10.244.0.0/16})" }}
{{- end }}
{{- if and .Values.rotator.enabled (not .Values.sentinel.enabled) }}
{{- fail "rotator.enabled=true and sentinel.enabled=false contradict each other: the rotator moves the sentinel's endpoint; set rotator.enabled=false as well, or sentinel.enabled=true" }}
{{- end }}
{{- if and (eq $agent.view "sentinel") (not .Values.sentinel.enabled) }}
{{- fail "agent.view=sentinel and sentinel.enabled=false contradict each other: with this view the sentinel alone is judged; set agent.view=full, or sentinel.enabled=true" }}
{{- end }}
{{- $port := include "pathproof.healthzPort" . }}
{{- if eq $port (toString (int $admin.port)) }}
{{- fail (printf "agent.healthzBindAddress=%s and agent.admin.port=%d contradict each other: load balancers must not reach what the admin port tells; give one of them another port" $agent.healthzBindAddress (int $admin.port)) }}
{{- end }}
{{- range $value, $address := dict "endpointIPv4" "clientIPv4" "endpointIPv6" "clientIPv6" }}
{{- if eq (index $.Values.sentinel $value) (index $.Values.sentinel $address) }}
{{- fail (printf "sentinel.%s and sentinel.%s are both %s: probes go from the one to the other; give them different addresses" $value $address (index $.Values.sentinel $value)) }}
{{- end }}
{{- end }}
{{- include "pathproof.validateArgs" . }}
{{- end }}

{{/* Options in extraArgs that a value sets already. */}}
{{- define "pathproof.validateArgs" -}}
{{- $values := dict
  "--datapath" "agent.datapath"
  "--port-takeover" "agent.portTakeover"
  "--enforcement" "agent.enforcement"
  "--unknown-policy" "agent.unknownPolicy"
  "--view" "agent.view"
  "--healthz-bind-address" "agent.healthzBindAddress"
  "--healthz-allow-cidr" "agent.healthzAllowCidrs"
  "--health-check-node-ports" "agent.healthCheckNodePorts"
  "--admin-bind-address" "agent.admin"
  "--admin-allow-cidr" "agent.admin.allowCidrs"
  "--drain-ignore-cidr" "agent.drainIgnoreCidrs"
  "--terminating-taint" "agent.terminatingTaints"
  "--pin-dir" "agent.pins"
  "--publish-condition" "agent.publishCondition"
  "--publish-events" "agent.publishEvents"
  "--flap-dwell" "agent.flapDwell"
  "--log-format" "agent.logFormat"
  "--sentinel" "sentinel.enabled"
  "--sentinel-service" "the release's namespace"
  "--sentinel-client-address" "sentinel.clientIPv4 and clientIPv6"
  "--sentinel-endpoint-address" "sentinel.endpointIPv4 and endpointIPv6"
  "--node-name" "the pod's own spec.nodeName"
}}
{{- range .Values.agent.extraArgs }}
{{- $option := regexFind "^--[a-z-]+" . }}
{{- with index $values $option }}
{{- fail (printf "agent.extraArgs has %s, which %s sets: give it there, and take it out of agent.extraArgs" $option .) }}
{{- end }}
{{- end }}
{{- end }}
