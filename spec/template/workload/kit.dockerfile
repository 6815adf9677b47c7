# The base holds bash, git, a CA store and the user agent (uid 1000).
ARG KIT_BASE=kitbox.local/base:1
FROM ${KIT_BASE}

# The base's user is agent; installing needs root.
USER root
# RUN steps that install the software go here. They have no network unless the
# Kit is built with --build-network public.
# Every bash reads the file that BASH_ENV names, the agent's launch included:
# what is added to the environment goes there.
RUN touch /etc/sandbox-env.sh
ENV BASH_ENV=/etc/sandbox-env.sh

USER agent
WORKDIR /home/agent/workspace
# What a sandbox runs when no command is given.
CMD ["/bin/bash"]
