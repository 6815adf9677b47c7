ARG KIT_BASE=kitbox.local/base:1
# The base's user is agent; what follows writes outside its home.
FROM ${KIT_BASE}
USER root

COPY --chmod=0755 <<'SH' /usr/local/bin/hello
#!/bin/bash
echo "${HELLO_GREETING:-Hello} from $(id -un) in ${SANDBOX_NAME:-a container}${*:+: $*}"
SH
COPY --chmod=0644 <<'SH' /etc/sandbox-env.sh
export HELLO_ENV=loaded
SH
RUN mkdir -p /home/agent/workspace && chown agent:agent /home/agent/workspace

ENV BASH_ENV=/etc/sandbox-env.sh
USER agent
WORKDIR /home/agent/workspace
ENTRYPOINT ["/usr/local/bin/hello"]
