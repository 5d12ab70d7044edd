# The image holds one static binary and the list of what it is made of, so there is nothing else to patch. The binary is built
# outside (`make release`; dev/image.sh lays it out below root/): no base image has to be pulled, and the same file serves every
# architecture, for example  docker buildx build --platform linux/arm64 -f Dockerfile <context with an arm64 binary>  (not tried).
FROM scratch
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="harvester-cloud-provider" \
      org.opencontainers.image.description="Cloud controller manager and address announcer for Kubernetes on Harvester" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY root/ /
# The announcer's DaemonSet overrides the user: only root gets effective capabilities without a file capability.
USER 65532:65532
ENV PATH=/usr/bin
ENTRYPOINT ["/usr/bin/harvester-cloud-provider"]
