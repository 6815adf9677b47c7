ARG KIT_BASE=kitbox.local/base:1
FROM ${KIT_BASE} AS build
COPY --chmod=0755 <<'SH' /out/usr/local/bin/tool
#!/bin/sh
echo "up since $(cat /time.txt)"
SH
RUN /bin/sh -n /out/usr/local/bin/tool

# The overlay alone: nothing of the build stage travels.
FROM scratch
COPY --from=build /out /
ENTRYPOINT ["/usr/local/bin/tool"]
