{{/* Conflicts between values: the message names both values and the remedy. */}}
{{- define "pathproof.validate" -}}
{{- include "pathproof.validatePresent" . }}
{{- include "pathproof.validatePods" . }}
{{- if not .Values.shared.create }}{{ include "pathproof.validateAlone" . }}{{ end }}
{{- $profile := include "pathproof.profile" . }}
{{- $agent := .Values.agent }}
{{- $admin := $agent.admin }}
{{- $metrics := .Values.metrics }}
{{- if eq $profile "rke1" }}
{{- include "pathproof.validateIgnored" . }}
{{- range $kind := list "podMonitor" "serviceMonitor" }}
{{- if (index $metrics $kind).enabled }}
{{- fail (printf "metrics.%s.enabled=true conflicts with profile=rke1: a monitor selects pods, but on RKE1 the agents are RKE's containers; use the ScrapeConfig in deploy/README.md, and set metrics.%s.enabled=false" $kind $kind) }}
{{- end }}
{{- end }}
{{- if not .Values.sentinel.enabled }}
{{- fail "profile=rke1 with sentinel.enabled=false installs nothing: with RKE1 the chart installs only the sentinel and its rotator; set sentinel.enabled=true, or uninstall the chart" }}
{{- end }}
{{- end }}
{{- if and (ne .Values.rotator.withdraw "off") (not .Values.sentinel.enabled) }}
{{- fail "rotator.withdraw=label conflicts with sentinel.enabled=false, which also removes the rotator: set rotator.withdraw=off, or sentinel.enabled=true" }}
{{- end }}
{{- if and (ne .Values.rotator.withdraw "off") (not (include "pathproof.policy" .)) }}
{{- fail "rotator.withdraw=label needs the policy that limits the rotator's right to patch Nodes to one label: set policy.enabled=true on Kubernetes 1.30 or newer, or rotator.withdraw=off" }}
{{- end }}
{{- if and (eq $profile "beside-kube-proxy") (eq $agent.portTakeover "bind") }}
{{- fail "agent.portTakeover=bind conflicts with profile=beside-kube-proxy: kube-proxy listens on port 10256; leave agent.portTakeover empty, or set profile=standalone if kube-proxy does not run or has another healthzBindAddress" }}
{{- end }}
{{- if and (eq $profile "standalone") (eq $agent.portTakeover "steer") }}
{{- fail "agent.portTakeover=steer conflicts with profile=standalone: steer is for nodes where another process listens on the port; leave agent.portTakeover empty, or set profile=beside-kube-proxy or profile=cilium" }}
{{- end }}
{{- range $kind := list "podMonitor" "serviceMonitor" }}
{{- if and (index $metrics $kind).enabled (not $admin.allowCidrs) }}
{{- fail (printf "metrics.%s.enabled=true needs agent.admin.allowCidrs: without it the admin port listens on loopback only, where Prometheus cannot reach it; set it to the addresses of Prometheus, such as the pod CIDR (agent.admin.allowCidrs={10.244.0.0/16})" $kind) }}
{{- end }}
{{- end }}
{{- range $kind := list "podMonitor" "serviceMonitor" }}
{{- $monitor := index $metrics $kind }}
{{- $ms := 0 }}
{{- range regexFindAll "[0-9]+[a-z]+" $monitor.interval -1 }}
{{- $ms = add $ms (mul (regexFind "[0-9]+" . | atoi) (get (dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000) (regexFind "[a-z]+" .))) }}
{{- end }}
{{- if and $monitor.enabled $metrics.prometheusRule.enabled (gt (int $ms) 120000) }}
{{- fail (printf "metrics.%s.interval=%s conflicts with metrics.prometheusRule.enabled=true: rules over 5 minutes need at least two samples, and PathproofVerdictStandsStill would fire for every node; set an interval of at most 2m" $kind $monitor.interval) }}
{{- end }}
{{- end }}
{{- if and $metrics.podMonitor.enabled $metrics.serviceMonitor.enabled }}
{{- fail "metrics.podMonitor.enabled=true conflicts with metrics.serviceMonitor.enabled=true: every agent would be scraped twice; set one of them to false" }}
{{- end }}
{{- if and (eq $agent.view "sentinel") (not .Values.sentinel.enabled) }}
{{- fail "agent.view=sentinel conflicts with sentinel.enabled=false: with this view only the sentinel is judged; set agent.view=full, or sentinel.enabled=true" }}
{{- end }}
{{- $port := include "pathproof.healthzPort" . }}
{{- if eq $port (toString (int $admin.port)) }}
{{- fail (printf "agent.healthzBindAddress=%s conflicts with agent.admin.port=%d: both use the same port; give one of them another port" $agent.healthzBindAddress (int $admin.port)) }}
{{- end }}
{{- range $value, $address := dict "endpointIPv4" "clientIPv4" "endpointIPv6" "clientIPv6" }}
{{- if eq (index $.Values.sentinel $value) (index $.Values.sentinel $address) }}
{{- fail (printf "sentinel.%s and sentinel.%s are both %s: probes go from one to the other; give them different addresses" $value $address (index $.Values.sentinel $value)) }}
{{- end }}
{{- end }}
{{- include "pathproof.validateArgs" . }}
{{- include "pathproof.validateLabels" . }}
{{- include "pathproof.validateAccounts" . }}
{{- include "pathproof.validateNamespace" . }}
{{- with .Values.rotator }}
{{- with .podDisruptionBudget }}
{{- $replicas := int $.Values.rotator.replicas }}
{{- $least := toString .minAvailable }}
{{- $needed := atoi (trimSuffix "%" $least) }}
{{- /* Kubernetes rounds a percentage up. */}}
{{- if hasSuffix "%" $least }}{{ $needed = div (add (mul $needed $replicas) 99) 100 }}{{ end }}
{{- if and .enabled (ge (int $needed) $replicas) }}
{{- fail (printf "rotator.podDisruptionBudget.minAvailable=%s conflicts with rotator.replicas=%d: no node with a rotator could be drained; set a higher rotator.replicas, or maxUnavailable in place of minAvailable" $least $replicas) }}
{{- end }}
{{- if and .enabled (not .minAvailable) (eq (atoi (trimSuffix "%" (toString .maxUnavailable))) 0) }}
{{- fail (printf "rotator.podDisruptionBudget.maxUnavailable=%v: no node with a rotator could be drained; set at least 1" .maxUnavailable) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Values that templates read fields of. A null deletes one, and --reuse-values does not know new ones. */}}
{{- define "pathproof.validatePresent" -}}
{{- range $path := list "global" "shared" "commonLabels" "extraObjects" "namespace" "image" "rbac" "agent" "agent.admin" "agent.serviceAccount" "agent.profiles" "agent.updateStrategy" "agent.updateStrategy.rollingUpdate" "rotator" "rotator.serviceAccount" "rotator.podDisruptionBudget" "sentinel" "echo" "policy" "networkPolicy" "resourceQuota" "metrics" "metrics.podMonitor" "metrics.serviceMonitor" "metrics.prometheusRule" "metrics.dashboard" }}
{{- $at := $.Values }}
{{- range splitList "." $path }}{{ $at = get $at . }}{{ end }}
{{- if not (or (kindIs "map" $at) (kindIs "slice" $at)) }}
{{- fail (printf "%s is missing: it was set to null, or --reuse-values took the values of an earlier chart; remove the null, or use --reset-then-reuse-values (Helm 3.14), or pass your values files" $path) }}
{{- end }}
{{- end }}
{{- end }}

{{/* A release of agents alone, beside one with the shared objects. */}}
{{- define "pathproof.validateAlone" -}}
{{- if not (include "pathproof.agents" .) }}
{{- fail "shared.create=false conflicts with profile=rke1: with RKE1 the chart installs only what is shared; set shared.create=true" }}
{{- end }}
{{- if eq (include "pathproof.fullname" .) "pathproof" }}
{{- fail "shared.create=false, but the name pathproof belongs to the first release: choose another release name, or set fullnameOverride" }}
{{- end }}
{{- if not (include "pathproof.choosesNodes" . | trim) }}
{{- fail "shared.create=false needs agent.nodeSelector or agent.affinity: with the defaults every node would have an agent of each release; select the nodes of this one, and exclude them in the first release" }}
{{- end }}
{{- end }}

{{- define "pathproof.validatePods" -}}
{{- $image := include "pathproof.image" . }}
{{- if not (or (contains "/" $image) (eq .Values.image.pullPolicy "Never")) }}
{{- fail (printf "image.repository=%s names no registry, and no public one has the image: set image.registry or global.imageRegistry to yours, or image.pullPolicy=Never if the image was loaded onto every node" .Values.image.repository) }}
{{- end }}
{{- range (concat .Values.agent.extraVolumes .Values.agent.extraVolumeMounts) }}
{{- if has .name (list "bpffs" "state" "journal") }}
{{- fail (printf "agent.extraVolumes or agent.extraVolumeMounts has %s, which the chart uses itself: choose another name" .name) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Values of the agent where no agent is a pod of this release: one that is not the default is refused.
     A test compares the file with values.yaml. */}}
{{- define "pathproof.validateIgnored" -}}
{{- $agent := .Values.agent }}
{{- range $name, $default := .Files.Get "files/agent-defaults.yaml" | fromYaml }}
{{- $pairs := dict (printf "agent.%s" $name) (list (index $agent $name) $default) }}
{{- if has $name (list "admin" "profiles" "serviceAccount" "updateStrategy") }}
{{- $pairs = dict }}
{{- range $key, $value := $default }}
{{- $_ := set $pairs (printf "agent.%s.%s" $name $key) (list (index $agent $name $key) $value) }}
{{- end }}
{{- end }}
{{- range $path, $pair := $pairs }}
{{- $value := index $pair 0 }}
{{- if ne (toJson $value) (toJson (index $pair 1)) }}
{{- $shown := "" }}
{{- if not (or (kindIs "map" $value) (kindIs "slice" $value)) }}{{ $shown = printf "=%v" $value }}{{ end }}
{{- fail (printf "%s%s is an agent option, but with profile=rke1 the agent runs as RKE's kube-proxy container: set its PATHPROOF_ variable in cluster.yml (services.kubeproxy.extra_env), and remove the value" $path $shown) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Labels that select pods, or that Helm's own tools read. */}}
{{- define "pathproof.validateLabels" -}}
{{- $ours := list "app.kubernetes.io/name" "app.kubernetes.io/component" "app.kubernetes.io/instance" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart" }}
{{- range $path, $labels := dict "commonLabels" .Values.commonLabels "agent.podLabels" .Values.agent.podLabels "rotator.podLabels" .Values.rotator.podLabels "echo.podLabels" .Values.echo.podLabels }}
{{- range $label := keys $labels | sortAlpha }}
{{- if has $label $ours }}
{{- fail (printf "%s has %s, which the chart sets itself to select pods: remove it, or choose another label" $path $label) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Policies restrict agents and the rotator by the names of their ServiceAccounts. */}}
{{- define "pathproof.validateAccounts" -}}
{{- range $part := .Values.shared.create | ternary (list "agent" "rotator") list }}
{{- with (index $.Values $part).serviceAccount }}
{{- if and (not .create) (not .name) }}
{{- fail (printf "%s.serviceAccount.create=false needs %s.serviceAccount.name: set the name of an existing ServiceAccount, or set create=true" $part $part) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and (include "pathproof.agents" .) (include "pathproof.rotator" .) (eq (include "pathproof.agentAccount" .) (include "pathproof.rotatorAccount" .)) }}
{{- fail (printf "agent.serviceAccount.name and rotator.serviceAccount.name are both %s: every agent would have the rotator's rights; give them different ServiceAccounts" .Values.agent.serviceAccount.name) }}
{{- end }}
{{- end }}

{{/* The namespace as the cluster has it. `helm template` asks no cluster, and sees none. */}}
{{- define "pathproof.validateNamespace" -}}
{{- if .Values.namespace.check }}
{{- $name := .Release.Namespace }}
{{- $found := lookup "v1" "Namespace" "" $name }}
{{- $enforced := dig "metadata" "labels" "pod-security.kubernetes.io/enforce" "" $found }}
{{- if and (include "pathproof.agents" .) $enforced (ne $enforced "privileged") (not .Values.namespace.create) }}
{{- fail (printf "the namespace %s has the label pod-security.kubernetes.io/enforce=%s, but the agents need the host network: kubectl label --overwrite namespace %s pod-security.kubernetes.io/enforce=privileged, or install into another namespace" $name $enforced $name) }}
{{- end }}
{{- $owner := dig "metadata" "annotations" "meta.helm.sh/release-name" "" $found }}
{{- if and .Values.namespace.create .Values.shared.create $found (ne $owner .Release.Name) }}
{{- fail (printf "namespace.create=true, but the namespace %s exists and does not belong to this release: set namespace.create=false, and kubectl label namespace %s pod-security.kubernetes.io/enforce=privileged" $name $name) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Options in extraArgs, and variables in extraEnv, that a value sets already. */}}
{{- define "pathproof.validateArgs" -}}
{{- $values := dict
  "--datapath" "agent.datapath"
  "--port-takeover" "agent.portTakeover"
  "--enforcement" "agent.enforcement"
  "--enforce-nodes" "agent.enforceNodes"
  "--unknown-policy" "agent.unknownPolicy"
  "--families" "agent.families"
  "--view" "agent.view"
  "--healthz-bind-address" "agent.healthzBindAddress"
  "--healthz-allow-cidr" "agent.healthzAllowCidrs"
  "--health-check-node-ports" "agent.healthCheckNodePorts"
  "--admin-bind-address" "agent.admin"
  "--admin-allow-cidr" "agent.admin.allowCidrs"
  "--service-metrics" "agent.serviceMetrics"
  "--drain-ignore-cidr" "agent.drainIgnoreCidrs"
  "--terminating-taint" "agent.terminatingTaints"
  "--pin-dir" "agent.pins"
  "--publish-condition" "agent.publishCondition"
  "--publish-events" "agent.publishEvents"
  "--flap-dwell" "agent.flapDwell"
  "--log-format" "agent.logFormat"
  "--log-filter" "agent.logLevel"
  "--sentinel" "sentinel.enabled"
  "--sentinel-service" "the release's namespace"
  "--sentinel-client-address" "sentinel.clientIPv4 and clientIPv6"
  "--sentinel-endpoint-address" "sentinel.endpointIPv4 and endpointIPv6"
  "--node-name" "the pod's own spec.nodeName"
}}
{{- range .Values.agent.extraArgs }}
{{- $option := regexFind "^--[a-z-]+" . }}
{{- with index $values $option }}
{{- fail (printf "agent.extraArgs has %s, which %s sets: set it there, and remove it from agent.extraArgs" $option .) }}
{{- end }}
{{- end }}
{{- range .Values.agent.extraEnv }}
{{- $name := .name }}
{{- $option := printf "--%s" ($name | trimPrefix "PATHPROOF_" | lower | replace "_" "-") }}
{{- $setter := "" }}
{{- if hasPrefix "PATHPROOF_" $name }}{{ $setter = get $values $option }}{{ end }}
{{- $setter = get (dict "NODE_NAME" "the pod's own spec.nodeName" "PATHPROOF_JOURNAL_DIR" "the chart itself" "PATHPROOF_ADMIN_ADDRESS" "agent.admin.port" "PATHPROOF_DOCS_URL" "metrics.prometheusRule.runbooks") $name | default $setter }}
{{- with $setter }}
{{- fail (printf "agent.extraEnv has %s, which %s sets: set it there, and remove it from agent.extraEnv" $name .) }}
{{- end }}
{{- end }}
{{- $rotator := dict
  "PATHPROOF_SENTINEL_SERVICE" "the release's namespace"
  "PATHPROOF_SENTINEL_CLIENT_ADDRESS" "sentinel.clientIPv4 and clientIPv6"
  "PATHPROOF_SENTINEL_ENDPOINT_ADDRESS" "sentinel.endpointIPv4 and endpointIPv6"
  "PATHPROOF_INTERVAL" "rotator.interval"
  "PATHPROOF_BRAKE_BY" "rotator.brakeBy"
  "PATHPROOF_WITHDRAW" "rotator.withdraw"
  "PATHPROOF_WITHDRAW_AFTER" "rotator.withdrawAfter"
  "PATHPROOF_LOG_FILTER" "rotator.logLevel"
  "POD_NAME" "the pod's own metadata.name"
  "POD_NAMESPACE" "the pod's own metadata.namespace"
}}
{{- range .Values.rotator.extraEnv }}
{{- $name := .name }}
{{- with get $rotator $name }}
{{- fail (printf "rotator.extraEnv has %s, which %s sets: set it there, and remove it from rotator.extraEnv" $name .) }}
{{- end }}
{{- end }}
{{- end }}
