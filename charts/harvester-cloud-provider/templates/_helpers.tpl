{{/*
Values may come from another chart (helm upgrade --reuse-values) or be null, so nothing below a top-level key is taken for granted.
*/}}

{{/* Any scalar as text. Helm reads numbers as floats in places: 20240101 must not become 2.0240101e+07. */}}
{{- define "harvester-cloud-provider.text" -}}
{{- if kindIs "invalid" . -}}
{{- else if and (kindIs "float64" .) (eq . (floor .)) -}}{{ int64 . }}
{{- else -}}{{ toString . }}
{{- end -}}
{{- end -}}

{{- define "harvester-cloud-provider.name" -}}
{{- $name := .Values.fullnameOverride | default .Values.nameOverride | default .Chart.Name -}}
{{- include "harvester-cloud-provider.text" $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "harvester-cloud-provider.serviceAccountName" -}}
{{- (.Values.serviceAccount | default dict).name | default (include "harvester-cloud-provider.name" .) -}}
{{- end -}}

{{/* Immutable on the Deployment: exactly these two, as in every older chart. */}}
{{- define "harvester-cloud-provider.selectorLabels" -}}
app.kubernetes.io/name: {{ include "harvester-cloud-provider.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "harvester-cloud-provider.versionLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{- define "harvester-cloud-provider.labels" -}}
{{ include "harvester-cloud-provider.versionLabels" . }}
{{ include "harvester-cloud-provider.selectorLabels" . }}
{{- end -}}

{{- define "harvester-cloud-provider.cattle" -}}
{{- toYaml ((.Values.global | default dict).cattle | default dict) -}}
{{- end -}}

{{/* The root key clusterName is that of charts before 0.1.12, still found in samples. */}}
{{- define "harvester-cloud-provider.clusterName" -}}
{{- $cattle := include "harvester-cloud-provider.cattle" . | fromYaml -}}
{{- $name := include "harvester-cloud-provider.text" $cattle.clusterName -}}
{{- if not $name -}}{{- $name = include "harvester-cloud-provider.text" .Values.clusterName -}}{{- end -}}
{{- if and (not $name) (.Values.global | default dict).requireClusterName -}}
{{- fail "global.cattle.clusterName is empty: give this guest cluster a name that no other cluster in the namespace of its virtual machines has (global.requireClusterName asks for one)" -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/*
Takes a list: root context, repository, tag, name of the value. The registry goes before repositories that name no host. A digest, which stands
behind @, is complete without a tag.
*/}}
{{- define "harvester-cloud-provider.reference" -}}
{{- $root := index . 0 -}}{{- $repository := index . 1 -}}{{- $tag := include "harvester-cloud-provider.text" (index . 2) -}}{{- $value := index . 3 -}}
{{- $reference := ternary $repository (printf "%s:%s" $repository $tag) (contains "@" $repository) -}}
{{- if regexMatch "^@?sha256:" $tag -}}{{- $reference = printf "%s@%s" $repository (trimPrefix "@" $tag) -}}{{- end -}}
{{- $tagged := regexReplaceAll "@sha256:[0-9a-f]{64}$" $reference "" -}}
{{- if contains "@" $tagged -}}
{{- fail (printf "%s.repository and %s.tag give %q, which is no image: accepted behind @ is one digest, sha256: and 64 digits 0-9a-f" $value $value $reference) -}}
{{- end -}}
{{- if regexMatch ":[^/]*:" (base $tagged) -}}
{{- fail (printf "%s.repository is %q: the tag belongs in %s.tag" $value $repository $value) -}}
{{- end -}}
{{- $cattle := include "harvester-cloud-provider.cattle" $root | fromYaml -}}
{{- $registry := include "harvester-cloud-provider.text" $cattle.systemDefaultRegistry | trimSuffix "/" -}}
{{- if and $registry (not (regexMatch "^([^/]*[.:][^/]*|localhost)/" $repository)) -}}{{ $registry }}/{{ end -}}
{{ $reference }}
{{- end -}}

{{- define "harvester-cloud-provider.image" -}}
{{- $image := .Values.image | default dict -}}
{{- include "harvester-cloud-provider.reference" (list . ($image.repository | default "rancher/harvester-cloud-provider") ($image.tag | default .Chart.AppVersion) "image") -}}
{{- end -}}

{{/* True if the repository given for the announcer is kube-vip's own, as in the values of older charts. */}}
{{- define "harvester-cloud-provider.foreignAnnouncer" -}}
{{- $repository := (((index .Values "kube-vip") | default dict).image | default dict).repository | default "" -}}
{{- if regexMatch "(^|/)[^/]*kube-vip[^/]*$" $repository -}}true{{- end -}}
{{- end -}}

{{/* A tag without a repository of its own would most likely be one of kube-vip. */}}
{{- define "harvester-cloud-provider.announcerImage" -}}
{{- $image := ((index .Values "kube-vip") | default dict).image | default dict -}}
{{- if or (not $image.repository) (include "harvester-cloud-provider.foreignAnnouncer" .) -}}
{{- include "harvester-cloud-provider.image" . -}}
{{- else -}}
{{- include "harvester-cloud-provider.reference" (list . $image.repository ($image.tag | default (.Values.image | default dict).tag | default .Chart.AppVersion) "kube-vip.image") -}}
{{- end -}}
{{- end -}}

{{/* Takes a list: root context, further list. Elements are names or maps with a name. */}}
{{- define "harvester-cloud-provider.pullSecrets" -}}
{{- $root := index . 0 -}}
{{- $names := list -}}
{{- range concat ((index . 1) | default list) ($root.Values.imagePullSecrets | default list) (($root.Values.global | default dict).imagePullSecrets | default list) -}}
{{- if kindIs "map" . -}}{{- $names = append $names .name -}}{{- else -}}{{- $names = append $names . -}}{{- end -}}
{{- end -}}
{{- range uniq $names }}
- name: {{ . }}
{{- end -}}
{{- end -}}

{{/* Where the cloud-config comes from, as YAML: secret, key or directory, file. */}}
{{- define "harvester-cloud-provider.cloudConfig" -}}
{{- $cloudConfig := .Values.cloudConfig | default dict -}}
{{- $path := .Values.cloudConfigPath | default $cloudConfig.hostPath -}}
{{- if $cloudConfig.secretName -}}
secret: {{ $cloudConfig.secretName | quote }}
key: {{ $cloudConfig.secretKey | default "cloud-config" | quote }}
file: cloud-config
{{- else if $path -}}
{{- if not (regexMatch "^/.*[^/]$" $path) -}}
{{- fail (printf "cloudConfigPath (or cloudConfig.hostPath) is %q: give the absolute path of a file on the host" $path) -}}
{{- end -}}
{{- if eq (dir $path) "/" -}}
{{- fail (printf "cloudConfigPath (or cloudConfig.hostPath) is %q: its directory is mounted, and that must not be /" $path) -}}
{{- end -}}
path: {{ $path | quote }}
directory: {{ dir $path | quote }}
file: {{ base $path | quote }}
{{- else -}}
{{- fail "no cloud-config: set cloudConfig.secretName (a Secret), cloudConfigPath or cloudConfig.hostPath (a file on the host)" -}}
{{- end -}}
{{- end -}}

{{/* Takes a list: root context, name of a flag. Its last value in extraArgs, as --name=value or as two elements, --name and value. */}}
{{- define "harvester-cloud-provider.flag" -}}
{{- $flag := printf "--%s" (index . 1) -}}
{{- $found := "" -}}{{- $open := false -}}
{{- range (index . 0).Values.extraArgs -}}
{{- $arg := include "harvester-cloud-provider.text" . -}}
{{- if $open -}}{{- $found = $arg -}}
{{- else if hasPrefix (printf "%s=" $flag) $arg -}}{{- $found = trimPrefix (printf "%s=" $flag) $arg -}}
{{- end -}}
{{- $open = and (not $open) (eq $arg $flag) -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{/* Flags in extraArgs that the program refuses, comma separated. A warning only: an image of another version may know them. */}}
{{- define "harvester-cloud-provider.unknownFlags" -}}
{{- $known := .Files.Lines "files/flags.txt" -}}
{{- $unknown := list -}}
{{- range .Values.extraArgs -}}
{{- $flag := include "harvester-cloud-provider.text" . | splitList "=" | first -}}
{{- if and (hasPrefix "--" $flag) (not (has (trimPrefix "--" $flag) $known)) -}}{{- $unknown = append $unknown $flag -}}{{- end -}}
{{- end -}}
{{- join ", " $unknown -}}
{{- end -}}

{{/* The address to probe, where --bind-address leaves only one; empty: that of the node. */}}
{{- define "harvester-cloud-provider.bindAddress" -}}
{{- $address := include "harvester-cloud-provider.flag" (list . "bind-address") -}}
{{- if not (has $address (list "0.0.0.0" "::")) -}}{{- $address -}}{{- end -}}
{{- end -}}

{{/* What this chart knows, by path; the same as in values.schema.json. Older charts have kube-vip.serviceAccount.create, always true. */}}
{{- define "harvester-cloud-provider.knownValues" -}}
"": [replicasCount, nodeLoss, hostUpgrade, image, imagePullSecrets, extraArgs, cloudConfig, cloudConfigPath, clusterName, global, nameOverride, fullnameOverride, serviceAccount, resources, priorityClassName, podAnnotations, podLabels, podSecurityContext, securityContext, nodeSelector, tolerations, affinity, podDisruptionBudget, serviceMonitor, prometheusRule, grafanaDashboard, kube-vip]
nodeLoss: [enabled]
hostUpgrade: [cooperation]
image: [repository, tag, pullPolicy]
cloudConfig: [secretName, secretKey, hostPath]
serviceAccount: [create, annotations, name]
podDisruptionBudget: [enabled, maxUnavailable]
serviceMonitor: [enabled, labels, annotations, interval]
prometheusRule: [enabled, documents, labels, annotations]
grafanaDashboard: [enabled, labels, annotations]
kube-vip: [enabled, image, config, env, envValueFrom, envFrom, extraArgs, annotations, podAnnotations, extraLabels, imagePullSecrets, hostAliases, volumes, volumeMounts, nameOverride, namespaceOverride, serviceAccount, podSecurityContext, securityContext, updateStrategy, priorityClassName, resources, nodeSelector, tolerations, nodes, affinity, podMonitor, claimKeysSecret]
kube-vip.image: [repository, tag, pullPolicy]
kube-vip.config: [address]
kube-vip.serviceAccount: [annotations, create]
kube-vip.podMonitor: [enabled, labels, annotations]
{{- end -}}

{{/* The announcer. */}}

{{- define "kube-vip.name" -}}
{{- (index .Values "kube-vip").nameOverride | default "kube-vip" | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "kube-vip.namespace" -}}
{{- (index .Values "kube-vip").namespaceOverride | default .Release.Namespace -}}
{{- end -}}

{{- define "kube-vip.selectorLabels" -}}
app.kubernetes.io/name: {{ include "kube-vip.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Where it serves metrics and health, as YAML: host (empty: all addresses), port. */}}
{{- define "kube-vip.listen" -}}
{{- $env := (index .Values "kube-vip").env | default dict -}}
{{- $flags := (index .Values "kube-vip").extraArgs | default dict -}}
{{- $settings := include "kube-vip.settings" . | fromYaml -}}
{{- $server := get $settings "prometheus_server" | default ":2112" -}}
{{- if and (not (include "harvester-cloud-provider.text" $env.prometheus_server)) (hasKey $flags "prometheusHTTPServer") (not (get $settings "prometheus_server")) -}}
{{- fail "kube-vip.extraArgs.prometheusHTTPServer is empty, which turns health off; the probes need it: accepted is :<port> or <address>:<port>" -}}
{{- end -}}
{{- if not (regexMatch "^([0-9.]*|localhost|\\[[0-9a-fA-F:.]+\\]):[1-9][0-9]{0,4}$" $server) -}}
{{- fail (printf "kube-vip.env.prometheus_server (or its flag prometheusHTTPServer in kube-vip.extraArgs) is %q: accepted is :<port> or <address>:<port>" $server) -}}
{{- end -}}
{{- $host := regexReplaceAll ":[0-9]+$" $server "" | trimPrefix "[" | trimSuffix "]" -}}
{{- if has $host (list "0.0.0.0" "::") -}}{{- $host = "" -}}{{- end -}}
host: {{ ternary "127.0.0.1" $host (eq $host "localhost") | quote }}
port: {{ regexFind "[0-9]+$" $server }}
{{- end -}}

{{/* Leases in any namespace: kube-vip's Lease per Service, and a Lease that was given with its namespace. */}}
{{- define "kube-vip.leasesEverywhere" -}}
{{- $settings := include "kube-vip.settings" . | fromYaml -}}
{{- if or (eq (include "kube-vip.mode" .) "service") (contains "/" (get $settings "svc_leasename")) -}}true{{- end -}}
{{- end -}}

{{/* How announcers choose owners, as the announcer reads it: node, service or global. */}}
{{- define "kube-vip.mode" -}}
{{- $settings := include "kube-vip.settings" . | fromYaml -}}
{{- $switch := include "kube-vip.switch" . | fromYaml -}}
{{- $election := has (get $settings "svc_election") $switch.on -}}
{{- get $settings "election_mode" | default (ternary "service" "node" $election) -}}
{{- end -}}

{{/* The port of health and metrics: that of the last --secure-port, as the program reads it. */}}
{{- define "harvester-cloud-provider.port" -}}
{{- $port := include "harvester-cloud-provider.flag" (list . "secure-port") | default "10258" -}}
{{- if not (regexMatch "^[1-9][0-9]{0,4}$" $port) -}}
{{- fail (printf "extraArgs: --secure-port=%s: the probes need a port from 1 to 65535" $port) -}}
{{- end -}}
{{- $port -}}
{{- end -}}

{{/* Name of the Lease of the election: extraArgs may give another one. */}}
{{- define "harvester-cloud-provider.leaseName" -}}
{{- include "harvester-cloud-provider.flag" (list . "leader-elect-resource-name") | default "cloud-controller-manager" -}}
{{- end -}}

{{- /*
Two, so that one is left when a node is lost; on a cluster of one node the second would find no port, and whoever waits for the rollout
waits for ever. Where nothing can be looked up (helm template, Argo CD) the number of nodes is unknown, which counts as one.
*/}}
{{- define "harvester-cloud-provider.replicas" -}}
{{- $wanted := include "harvester-cloud-provider.text" .Values.replicasCount }}
{{- $nodes := (lookup "v1" "Node" "" "").items | default list }}
{{- if $wanted }}{{ $wanted }}{{ else if gt (len $nodes) 1 }}2{{ else }}1{{ end }}
{{- end }}
