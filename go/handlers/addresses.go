package handlers

import (
	"fmt"
	"net/netip"
	"strings"
)

// Which hosts a download may reach: public ones, and those that the settings allow. Sources: the IANA
// special-purpose address registries for IPv4 and IPv6; cloud metadata services. The same list as
// src/taskgate/handlers/addresses.py.

type refusedNetwork struct {
	why     string
	network netip.Prefix
}

var refusedNetworks = func() (out []refusedNetwork) {
	for _, each := range [][2]string{
		{"this host", "0.0.0.0/8"},
		{"private", "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16"},
		{"carrier-grade NAT", "100.64.0.0/10"},
		{"loopback", "127.0.0.0/8"},
		{"link-local, metadata", "169.254.0.0/16"},
		{"metadata", "168.63.129.16/32"}, // Azure's, in public space
		{"reserved", "192.0.0.0/24 192.0.2.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4"},
		{"6to4", "192.88.99.0/24 2002::/16"},
		{"multicast", "224.0.0.0/4"},
		{"reserved for protocols", "2001::/23"},
		{"documentation", "2001:db8::/32 3fff::/20"},
	} {
		for _, network := range strings.Fields(each[1]) {
			out = append(out, refusedNetwork{each[0], netip.MustParsePrefix(network)})
		}
	}
	return out
}()

var globalV6 = netip.MustParsePrefix("2000::/3")

// refused is why an address is not a public one; empty if it is.
func refused(address netip.Addr) string {
	address = address.WithZone("") // a prefix contains no address with a zone
	for _, each := range refusedNetworks {
		if each.network.Contains(address) {
			return each.why
		}
	}
	if address.Is4In6() {
		return "IPv4-mapped"
	}
	if address.Is6() && !globalV6.Contains(address) { // loopback, unique local, link-local, NAT64, multicast, unassigned
		return "not global"
	}
	return ""
}

// allowList is a parsed TASKGATE_MEDIA_ALLOW: host names (`*.` before one for what is below it), addresses, networks.
type allowList struct {
	hosts    map[string]bool
	suffixes []string
	networks []netip.Prefix
}

func parseAllowed(text string) (allowList, error) {
	out := allowList{hosts: map[string]bool{}}
	for _, entry := range strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' || r == '\r' }) {
		bare := strings.Trim(entry, "[]")
		if address, err := netip.ParseAddr(bare); err == nil {
			out.networks = append(out.networks, netip.PrefixFrom(address, address.BitLen()))
		} else if strings.Contains(entry, "/") {
			network, err := netip.ParsePrefix(bare)
			if err != nil {
				return out, fmt.Errorf("%q is no network, such as 10.1.0.0/16", entry)
			}
			out.networks = append(out.networks, network.Masked())
		} else if strings.HasPrefix(entry, "*.") {
			out.suffixes = append(out.suffixes, entry[1:])
		} else {
			out.hosts[strings.TrimRight(entry, ".")] = true
		}
	}
	return out, nil
}

func (a allowList) host(name string) bool {
	name = strings.TrimRight(strings.ToLower(name), ".")
	for _, suffix := range a.suffixes {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return a.hosts[name]
}

func (a allowList) address(address netip.Addr) bool {
	for _, network := range a.networks {
		if network.Contains(address.WithZone("")) {
			return true
		}
	}
	return false
}
