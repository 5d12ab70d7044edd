{{/*
What the announcer accepts, so that a value that it refuses is refused before any pod is replaced: a pod that does not start blocks the
roll-out, and what a failed upgrade has set stays on the DaemonSet (Helm takes away only what the last good release had).
*/}}

{{/* kube-vip's variables and their flags; the same as in the announcer's config/variables.rs. */}}
{{- define "kube-vip.variables" -}}
vip_arp: arp
vip_arpRate: ""
vip_interface: interface
vip_servicesinterface: serviceInterface
vip_subnet: vipSubnet
svc_enable: services
svc_election: servicesElection
election_mode: ""
failover_profile: ""
vip_failback: ""
vip_handover: ""
vip_probe: ""
vip_claim_keys: ""
svc_leasename: servicesLeaseName
svc_lease_namespaces: ""
svc_namespace: ""
svc_controller: ""
cp_namespace: namespace
vip_leaseduration: leaseDuration
vip_renewdeadline: leaseRenewDuration
vip_retryperiod: leaseRetry
vip_nodename: nodeName
lb_class_only: lbClassOnly
lb_class_name: lbClassName
lb_class_legacy_handling: lbClassNameLegacyHandling
disable_service_updates: disableServiceUpdates
prometheus_server: prometheusHTTPServer
health_check_port: healthCheckPort
vip_loglevel: log
k8s_config_file: k8sConfigPath
kubernetes_addr: ""
cp_enable: controlplane
bgp_enable: bgp
vip_routingtable: table
vip_wireguard: wireguard
enable_service_security: onlyAllowTrafficServicePorts
vip_allow_interface_not_up: allowInterfaceNotUp
vip_loseleadership: loseLeadership
vip_loseleadership_timeout_seconds: loseLeadershiptTimeoutSeconds
vip_interfaceloglobal: loInterfaceGlobalScope
vip_cidr: cidr
per_service_election_on_demand: perServiceElectionOnDemand
vip_leaderelection: leaderElection
vip_leaseannotations: ""
vip_preserve_on_leadership_loss: preserveVipOnLeadershipLoss
enable_endpoints: enableEndpoints
enable_endpointslices: ""
enable_node_labeling: enableNodeLabeling
vip_skipdad: ""
dns_mode: dnsMode
dhcp_mode: dhcpMode
dhcp_backoff_attempts: dhcpBackoffAttempts
vip_ddns: ddns
egress_podcidr: ""
egress_servicecidr: ""
egress_withnftables: egressWithNftables
egress_enableinternalsnat: ""
egress_clean: ""
EGRESS_CLEAN: ""
instance_name: instanceName
INSTANCE_NAME: ""
enable_upnp: ""
enableUPNP: ""
iptables_backend: ""
mirror_dest_interface: mirrorDestInterface
annotation: annotations
lb_enable: lbEnable
lb_port: lbPort
lb_fwdmethod: lbForwardingMethod
debounce_time: debounceTime
vip_configmap: configMap
vip_singlenode: singleNode
vip_startleader: startAsLeader
vip_address: vip
address: address
port: port
config_file: config-file
{{- end -}}

{{/* What it refuses with the value true (on) or false (off), and what to do instead. */}}
{{- define "kube-vip.refused" -}}
bgp_enable: {value: "on", why: "the announcer speaks ARP and NDP only, not BGP: set it to \"false\""}
vip_routingtable: {value: "on", why: "the announcer speaks ARP and NDP only and has no routing table mode: set it to \"false\""}
vip_wireguard: {value: "on", why: "the announcer speaks ARP and NDP only and has no WireGuard mode: set it to \"false\""}
cp_enable: {value: "on", why: "the announcer serves Services only: set it to \"false\", and announce the control plane's address with a kube-vip of its own"}
vip_arp: {value: "off", why: "ARP and NDP are the only way that the announcer has: set it to \"true\""}
svc_enable: {value: "off", why: "serving Services is all that the announcer does: set it to \"true\""}
{{- end -}}

{{/* How switches are turned on and off. */}}
{{- define "kube-vip.switch" -}}
"on": ["1", "t", "T", "TRUE", "true", "True"]
"off": ["0", "f", "F", "FALSE", "false", "False"]
{{- end -}}

{{/* The grammar of values that are often mistyped; words and switches are in values.schema.json. */}}
{{- define "kube-vip.grammar" -}}
{{- $seconds := "^([1-9][0-9]{0,2}|[12][0-9]{3}|3[0-5][0-9]{2}|3600)$" -}}
{{- $six := "([0-9]|[1-9][0-9]|1[01][0-9]|12[0-8])" -}}
vip_subnet: {pattern: {{ printf "^/?(auto|%s)$|^/?(auto|[0-9]|[12][0-9]|3[0-2]) *, */?(auto|%s)$" $six $six | quote }}, accepted: "a prefix length, two as IPv4,IPv6 (such as 32,128), or the word auto in place of either"}
{{- range list "vip_leaseduration" "vip_renewdeadline" "vip_retryperiod" }}
{{ . }}: {pattern: {{ $seconds | quote }}, accepted: "a whole number of seconds from 1 to 3600"}
{{- end }}
vip_arpRate: {pattern: "^[0-9]+$", accepted: "a whole number of milliseconds"}
vip_loglevel: {pattern: "^-?[0-9]+$", accepted: "-8 trace, -4 debug, 0 info, 4 warn, 8 error"}
{{- end -}}

{{/* What the announcer will read, as YAML: the environment counts before flags, what is empty counts as unset, and what comes from elsewhere is not known here. */}}
{{- define "kube-vip.settings" -}}
{{- $root := . -}}
{{- $kubeVip := index .Values "kube-vip" -}}
{{- $env := $kubeVip.env | default dict -}}
{{- $flags := $kubeVip.extraArgs | default dict -}}
{{- $elsewhere := $kubeVip.envValueFrom | default dict -}}
{{- $settings := dict -}}
{{- range $variable, $flag := include "kube-vip.variables" . | fromYaml -}}
{{- $value := include "harvester-cloud-provider.text" (get $env $variable) -}}
{{- if and (not $value) $flag (hasKey $flags $flag) -}}
{{- $given := get $flags $flag -}}
{{- $value = ternary "true" (tpl (include "harvester-cloud-provider.text" $given) $root) (kindIs "invalid" $given) -}}
{{- end -}}
{{- if and $value (not (hasKey $elsewhere $variable)) -}}{{- $_ := set $settings $variable (trim $value) -}}{{- end -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* Fails on the first value that the announcer would not start with. */}}
{{- define "kube-vip.check" -}}
{{- $settings := include "kube-vip.settings" . | fromYaml -}}
{{- $switch := include "kube-vip.switch" . | fromYaml -}}
{{- range $variable, $rule := include "kube-vip.refused" . | fromYaml -}}
{{- if has (get $settings $variable) (get $switch $rule.value) -}}
{{- fail (printf "kube-vip.env.%s (or its flag in kube-vip.extraArgs) is %q: %s" $variable (get $settings $variable) $rule.why) -}}
{{- end -}}
{{- end -}}
{{- range $variable, $rule := include "kube-vip.grammar" . | fromYaml -}}
{{- if and (hasKey $settings $variable) (not (regexMatch $rule.pattern (get $settings $variable))) -}}
{{- fail (printf "kube-vip.env.%s (or its flag in kube-vip.extraArgs) is %q: accepted is %s" $variable (get $settings $variable) $rule.accepted) -}}
{{- end -}}
{{- end -}}
{{- $lease := int (get $settings "vip_leaseduration" | default "15") -}}
{{- $renew := int (get $settings "vip_renewdeadline" | default "10") -}}
{{- $retry := int (get $settings "vip_retryperiod" | default "2") -}}
{{- if or (le $lease $renew) (le (mul $renew 10) (mul $retry 12)) -}}
{{- fail (printf "kube-vip.env: vip_leaseduration (%d) must be greater than vip_renewdeadline (%d), and that greater than 1.2 times vip_retryperiod (%d)" $lease $renew $retry) -}}
{{- end -}}
{{- $known := values (include "kube-vip.variables" . | fromYaml) -}}
{{- range $flag, $_ := (index .Values "kube-vip").extraArgs -}}
{{- if not (has $flag $known) -}}
{{- fail (printf "kube-vip.extraArgs.%s: the announcer has no flag --%s" $flag $flag) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Flags of kube-vip.extraArgs whose variable is given, too, and says something else; comma separated. */}}
{{- define "kube-vip.overruledFlags" -}}
{{- $root := . -}}
{{- $kubeVip := index .Values "kube-vip" -}}
{{- $settings := include "kube-vip.settings" . | fromYaml -}}
{{- $overruled := list -}}
{{- range $variable, $flag := include "kube-vip.variables" . | fromYaml -}}
{{- if and $flag (hasKey ($kubeVip.extraArgs | default dict) $flag) (hasKey $settings $variable) -}}
{{- $given := get $kubeVip.extraArgs $flag -}}
{{- $value := ternary "true" (tpl (include "harvester-cloud-provider.text" $given) $root | trim) (kindIs "invalid" $given) -}}
{{- if ne $value (get $settings $variable) -}}{{- $overruled = append $overruled (printf "%s (%s is %q)" $flag $variable (get $settings $variable)) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- join ", " $overruled -}}
{{- end -}}

{{/* Variables of kube-vip.env that nobody reads, comma separated. The announcer's begin with a small letter; others may be the runtime's. */}}
{{- define "kube-vip.unknownVariables" -}}
{{- $known := concat (keys (include "kube-vip.variables" . | fromYaml)) (list "http_proxy" "https_proxy" "no_proxy") -}}
{{- $unknown := list -}}
{{- range $variable, $_ := (index .Values "kube-vip").env -}}
{{- if and (regexMatch "^[a-z]" $variable) (not (has $variable $known)) -}}{{- $unknown = append $unknown $variable -}}{{- end -}}
{{- end -}}
{{- join ", " $unknown -}}
{{- end -}}

{{/* Takes a list: labels of a node, the values of kube-vip. True if nodeSelector and affinity let the announcer run there; an operator that is not understood here counts as met. */}}
{{- define "kube-vip.runsOn" -}}
{{- $labels := index . 0 | default dict -}}{{- $kubeVip := index . 1 -}}
{{- $runs := true -}}
{{- range $key, $value := $kubeVip.nodeSelector -}}
{{- if ne (get $labels $key) (toString $value) -}}{{- $runs = false -}}{{- end -}}
{{- end -}}
{{- $required := (($kubeVip.affinity | default dict).nodeAffinity | default dict).requiredDuringSchedulingIgnoredDuringExecution | default dict -}}
{{- $matched := not $required.nodeSelectorTerms -}}
{{- range $required.nodeSelectorTerms -}}
{{- $term := true -}}
{{- range .matchExpressions -}}
{{- $has := hasKey $labels .key -}}
{{- $in := and $has (has (get $labels .key) (.values | default list)) -}}
{{- if or (and (eq .operator "Exists") (not $has)) (and (eq .operator "DoesNotExist") $has) (and (eq .operator "In") (not $in)) (and (eq .operator "NotIn") $in) -}}{{- $term = false -}}{{- end -}}
{{- end -}}
{{- if $term -}}{{- $matched = true -}}{{- end -}}
{{- end -}}
{{- if and $runs $matched -}}true{{- end -}}
{{- end -}}

{{/* True if announcers are to run on all nodes: by the value, or because no node has the label that the chart's own affinity asks for. */}}
{{- define "kube-vip.everywhere" -}}
{{- $kubeVip := index .Values "kube-vip" -}}
{{- $nodes := include "harvester-cloud-provider.text" $kubeVip.nodes | default "auto" -}}
{{- $keys := list -}}
{{- range ((($kubeVip.affinity | default dict).nodeAffinity | default dict).requiredDuringSchedulingIgnoredDuringExecution | default dict).nodeSelectorTerms -}}
{{- range .matchExpressions -}}{{- $keys = append $keys .key -}}{{- end -}}
{{- end -}}
{{- $untouched := and (eq (join "," $keys) "node-role.kubernetes.io/controlplane,node-role.kubernetes.io/control-plane") (not $kubeVip.nodeSelector) -}}
{{- if $untouched -}}
{{- if eq $nodes "all" -}}true{{- else if eq $nodes "auto" -}}{{- include "kube-vip.unmatched" (list $ $kubeVip) -}}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kube-vip.affinity" -}}
{{- $affinity := (index .Values "kube-vip").affinity -}}
{{- if and $affinity (not (include "kube-vip.everywhere" .)) -}}{{- toYaml $affinity -}}{{- end -}}
{{- end -}}

{{/* True if the cluster has nodes and none for the announcer. Empty where nothing can be looked up (helm template). */}}
{{- define "kube-vip.nowhere" -}}
{{- if not (include "kube-vip.everywhere" .) -}}{{- include "kube-vip.unmatched" (list . (index .Values "kube-vip")) -}}{{- end -}}
{{- end -}}

{{/* Takes a list: root context, the values of kube-vip. True if there are nodes, and none matches them. */}}
{{- define "kube-vip.unmatched" -}}
{{- $kubeVip := index . 1 -}}
{{- $nodes := (lookup "v1" "Node" "" "").items -}}
{{- $somewhere := false -}}
{{- range $nodes -}}
{{- if include "kube-vip.runsOn" (list .metadata.labels $kubeVip) -}}{{- $somewhere = true -}}{{- end -}}
{{- end -}}
{{- if and $nodes (not $somewhere) -}}true{{- end -}}
{{- end -}}
