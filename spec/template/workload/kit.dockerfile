# The base holds bash, git, a CA store and the user agent (uid 1000).
ARG KIT_BASE=kitbox.local/base:1
FROM ${KIT_BASE}

# RUN steps that install the software go here.

USER agent
WORKDIR /home/agent/workspace
# What a sandbox runs when no command is given.
CMD ["/bin/bash"]
