ARG KIT_BASE=kitbox.local/base:1
FROM ${KIT_BASE}
# The base's user is agent; what follows writes outside its home.
USER root
# What BASH_ENV names is read by every bash that is started, hooks included.
RUN printf 'export EDITOR=${EDITOR:-vi}\n' >/etc/sandbox-env.sh \
 && mkdir -p /home/agent/workspace && chown agent:agent /home/agent/workspace
ENV BASH_ENV=/etc/sandbox-env.sh
USER agent
WORKDIR /home/agent/workspace
ENTRYPOINT ["/bin/bash"]
