# The overlay alone: it lands on any workload, whose curl and sh it uses.
FROM scratch
COPY --chmod=0755 forge /usr/local/bin/forge
ENTRYPOINT ["/usr/local/bin/forge"]
CMD ["help"]
