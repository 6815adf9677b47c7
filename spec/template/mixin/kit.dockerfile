ARG KIT_BASE=kitbox.local/base:1
FROM ${KIT_BASE} AS build
COPY --chmod=0755 <<'SH' /out/usr/local/bin/%NAME%
#!/bin/sh
echo "%NAME% says hello"
SH

# The files alone: nothing of the base travels, so that this Kit lands on any.
FROM scratch
COPY --from=build /out /
ENTRYPOINT ["/usr/local/bin/%NAME%"]
