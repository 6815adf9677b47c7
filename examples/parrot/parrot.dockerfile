ARG KIT_BASE=kitbox.local/base:1
FROM ${KIT_BASE}
USER root
COPY --chmod=0755 parrot /usr/local/bin/parrot
COPY --chmod=0644 skills/repeat/SKILL.md /usr/share/parrot/skills/repeat/SKILL.md
RUN printf '# nothing yet\n' >/etc/sandbox-env.sh \
 && mkdir -p /home/agent/workspace /home/agent/.parrot/sessions /home/agent/.parrot/skills \
 && chown -R agent:agent /home/agent/workspace /home/agent/.parrot
ENV BASH_ENV=/etc/sandbox-env.sh
USER agent
WORKDIR /home/agent/workspace
ENTRYPOINT ["/usr/local/bin/parrot"]
