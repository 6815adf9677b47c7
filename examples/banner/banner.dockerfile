# syntax=docker/sandbox-kit:3
# kit:
#   # A descriptor in the comments of its recipe: the file is a Dockerfile still.
#   schemaVersion: "3"
#   kind: mixin
#   displayName: Banner
#   description: Adds the command banner, which frames its arguments
#   version: "1.0.0"
#   licenses: [Apache-2.0]
#   provides: ["banner@1.0.0"]

FROM scratch
COPY --chmod=0755 <<'SH' /usr/local/bin/banner
#!/bin/sh
line=$(printf '%s' "$*" | sed 's/./-/g')
printf '+-%s-+\n| %s |\n+-%s-+\n' "$line" "$*" "$line"
SH
ENTRYPOINT ["/usr/local/bin/banner"]
