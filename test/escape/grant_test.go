package escape

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// What the Kits are granted of the host: one service of its loopback for each
// transport, and the registry of the store's Kits.
const (
	hostName     = "host.kitbox.internal"
	registryName = "registry.kitbox.internal"
	grantedUDP   = 9997
	grantKit     = `{"type":"com.docker.sandbox/host-port@1","config":{"port":7777}},
 {"type":"com.docker.sandbox/host-port@1","config":{"port":9997,"transport":"udp"}},
 {"type":"com.docker.sandbox/kit-registry@1"},`
)

func hostAt(port int) string { return net.JoinHostPort(hostName, fmt.Sprint(port)) }

// grants are attempts to get more out of a grant than it says.
func grants() []attempt {
	service := func(w *world) error { return fetch(hostName, loopPort, "/"+w.Mark) }
	datagram := func(w *world) error { return send("udp4", hostAt(grantedUDP), w.Mark) }
	host := func(name, tries string, control, attack func(w *world) error) attempt {
		return attempt{name: "host-port-" + name, tries: tries, in: plain, at: plain, arrives: true, control: control, attack: attack}
	}
	registry := func(name, tries string, paths func(w *world) []string) attempt {
		return attempt{name: "registry-" + name, tries: tries, in: plain, at: plain,
			control: func(*world) error { return fetch(registryName, 80, "/v2/") },
			attack: func(w *world) error {
				var errs []error
				for _, p := range paths(w) {
					errs = append(errs, fetch(registryName, 80, p))
				}
				return anyOf(errs...)
			}}
	}
	return []attempt{
		host("other-port", "another port of the host", service, func(w *world) error { return fetch(hostName, 8080, "/"+w.Mark) }),
		host("other-name", "a name beside the one that was granted", service, func(w *world) error {
			return errors.Join(fetch("any."+hostName, loopPort, "/"+w.Mark), fetch("gateway.kitbox.internal", loopPort, "/"+w.Mark))
		}),
		host("datagram-for-a-connection", "a datagram where a connection was granted", datagram, func(w *world) error {
			return send("udp4", hostAt(loopPort), w.Mark)
		}),
		host("connection-for-a-datagram", "a connection where datagrams were granted", service, func(w *world) error {
			return fetch(hostName, grantedUDP, "/"+w.Mark)
		}),
		host("other-datagram", "a datagram to another port", datagram, func(w *world) error { return send("udp4", hostAt(udpPort), w.Mark) }),
		host("other-family", "a datagram to another port, by IPv6", datagram, func(w *world) error { return send("udp6", hostAt(udpPort), w.Mark) }),
		host("in-the-clothes-of-another", "the service by the name of an allowed host", service, func(w *world) error {
			return fetch(openName, loopPort, "/"+w.Mark)
		}),
		{name: "host-port-fragments", tries: "a datagram to another port, in fragments too short for it", in: strong, at: strong, arrives: true,
			control: datagram,
			attack: func(w *world) error {
				to, err := resolve(hostName, "ip4")
				if err != nil {
					return broken(err)
				}
				granted, other := udp(grantedUDP, w.Mark+"-padding-padding-pad"), udp(udpPort, w.Mark+"-padding-padding-pad")
				var errs []error
				for _, p := range [][]byte{
					ipv4(to, unix.IPPROTO_UDP, 0x2000, nil, other[:8]), ipv4(to, unix.IPPROTO_UDP, 1, nil, other[8:]),
					// The one that overlaps says another port.
					ipv4(to, unix.IPPROTO_UDP, 0x2000, nil, granted[:16]), ipv4(to, unix.IPPROTO_UDP, 0, nil, other),
				} {
					errs = append(errs, raw(p, to))
				}
				return errors.Join(errs...)
			}},
		{name: "host-port-spoofed", tries: "a datagram to another port that says it comes from the host", in: strong, at: strong, arrives: true,
			control: datagram,
			attack: func(w *world) error {
				to, err := resolve(hostName, "ip4")
				if err != nil {
					return broken(err)
				}
				for _, from := range []string{"127.0.0.1", "198.18.0.1", to.String()} {
					if err := frame("eth0", gatewayMAC(), unix.ETH_P_IP, finish(ipv4(to, unix.IPPROTO_UDP, 0, nil, udp(udpPort, w.Mark)), from)); err != nil {
						return err
					}
					if err := frame("eth0", gatewayMAC(), unix.ETH_P_IP, finish(ipv4(netip.MustParseAddr("127.0.0.1"), unix.IPPROTO_UDP, 0, nil, udp(grantedUDP, w.Mark)), from)); err != nil {
						return err
					}
				}
				return nil
			}},
		registry("other-image", "an image of the store that is no shared Kit", func(*world) []string {
			return []string{"/v2/plain/manifests/1", "/v2/kits/plain/manifests/1", "/v2/library/plain/manifests/1"}
		}),
		registry("traversal", "the same by a path that leaves the namespace", func(*world) []string {
			return []string{"/v2/kits/../plain/manifests/1", "/v2/kits/%2e%2e/plain/manifests/1", "/v2/kits/..%2fplain/manifests/1", "/v2//plain/manifests/1"}
		}),
		registry("digest", "content of the store by its digest", func(w *world) []string {
			var all []string
			for _, d := range w.Digests {
				for _, repo := range []string{"kits/x", "kits/plain", "docker/sandbox-kit", "plain"} {
					all = append(all, "/v2/"+repo+"/manifests/"+d, "/v2/"+repo+"/blobs/"+d)
				}
			}
			return all
		}),
		registry("catalog", "a list of everything in the store", func(*world) []string {
			return []string{"/v2/_catalog", "/v2/plain/tags/list", "/v2/../images/index.json", "/images/index.json"}
		}),
	}
}

// digests are those of what is in the store, which the sandbox is told.
func digests(dir string) ([]string, error) {
	es, err := os.ReadDir(dir)
	var all []string
	for _, e := range es {
		all = append(all, "sha256:"+e.Name())
	}
	return all, err
}
