# The image holds one static binary and nothing else, so there is nothing else to patch. The binary is built outside
# (`make release`): no base image has to be pulled, and the same file serves every architecture.
FROM scratch
LABEL org.opencontainers.image.title="harvester-cloud-provider" \
      org.opencontainers.image.description="Cloud controller manager and address announcer for Kubernetes on Harvester" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY harvester-cloud-provider /usr/bin/harvester-cloud-provider
# The announcer's DaemonSet overrides the user: only root gets effective capabilities without a file capability.
USER 65532:65532
ENV PATH=/usr/bin
ENTRYPOINT ["/usr/bin/harvester-cloud-provider"]
