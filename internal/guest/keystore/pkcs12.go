package keystore

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/asn1"
	"errors"
	"fmt"
	"hash"
)

// Of RFC 7292, and of Java: an entry that has its attribute is one that is trusted,
// for what the attribute says.
var (
	oidData         = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 1}
	oidCertBag      = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 12, 10, 1, 3}
	oidX509         = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 22, 1}
	oidFriendlyName = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 20}
	oidTrusted      = asn1.ObjectIdentifier{2, 16, 840, 1, 113894, 746875, 1, 1}
	oidAnyUsage     = asn1.ObjectIdentifier{2, 5, 29, 37, 0}
	oidSHA1         = asn1.ObjectIdentifier{1, 3, 14, 3, 2, 26}
	oidSHA256       = asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 2, 1}
)

type pfx struct {
	Version  int
	AuthSafe contentInfo
	MAC      macData `asn1:"optional"`
}

type contentInfo struct {
	Type    asn1.ObjectIdentifier
	Content asn1.RawValue `asn1:"tag:0,explicit"`
}

type macData struct {
	MAC struct {
		Algorithm struct {
			OID        asn1.ObjectIdentifier
			Parameters asn1.RawValue `asn1:"optional"`
		}
		Digest []byte
	}
	Salt       []byte
	Iterations int `asn1:"optional,default:1"`
}

// maxIterations bounds the work of one store; JDKs use 10,000.
const maxIterations = 100_000

// addPKCS12 adds a part with certs, in the clear, to a store, and seals it anew if
// it was sealed. The parts that are there stay as they are, encrypted or not.
func addPKCS12(store []byte, certs [][]byte) ([]byte, error) {
	var p pfx
	if rest, err := asn1.Unmarshal(store, &p); err != nil || len(rest) > 0 || p.Version != 3 || !p.AuthSafe.Type.Equal(oidData) {
		return nil, errors.New("neither a JKS nor a PKCS #12 key store")
	}
	var safe []byte // SEQUENCE OF ContentInfo
	if rest, err := asn1.Unmarshal(p.AuthSafe.Content.Bytes, &safe); err != nil || len(rest) > 0 {
		return nil, errors.New("a PKCS #12 key store of another kind")
	}
	var parts asn1.RawValue
	if rest, err := asn1.Unmarshal(safe, &parts); err != nil || len(rest) > 0 || parts.Tag != asn1.TagSequence {
		return nil, errors.New("a PKCS #12 key store without parts")
	}
	var salt []byte
	var sum func() hash.Hash
	if salt = p.MAC.Salt; len(p.MAC.MAC.Digest) > 0 {
		switch oid := p.MAC.MAC.Algorithm.OID; {
		case oid.Equal(oidSHA1):
			sum = sha1.New
		case oid.Equal(oidSHA256):
			sum = sha256.New
		default:
			return nil, fmt.Errorf("a PKCS #12 key store sealed by %v", oid)
		}
		if p.MAC.Iterations < 1 || p.MAC.Iterations > maxIterations {
			return nil, fmt.Errorf("a PKCS #12 key store sealed with %d rounds", p.MAC.Iterations)
		}
		if !hmac.Equal(sealPKCS12(sum, salt, p.MAC.Iterations, safe), p.MAC.MAC.Digest) {
			return nil, ErrPassword
		}
	}
	w := new(writer)
	var bags []byte
	for _, der := range certs {
		bags = append(bags, w.bag(alias(der), der)...)
	}
	part := w.info(w.wrap(asn1.TagSequence, bags))
	safe = w.wrap(asn1.TagSequence, append(append([]byte{}, parts.Bytes...), part...))
	out := append(w.marshal(3), w.info(safe)...)
	if sum != nil {
		p.MAC.MAC.Digest = sealPKCS12(sum, salt, p.MAC.Iterations, safe)
		out = append(out, w.marshal(p.MAC)...)
	}
	out = w.wrap(asn1.TagSequence, out)
	return out, w.err
}

// A writer makes DER and remembers what went wrong.
type writer struct{ err error }

func (w *writer) marshal(v any) []byte {
	b, err := asn1.Marshal(v)
	w.err = errors.Join(w.err, err)
	return b
}

func (w *writer) wrap(tag int, content []byte) []byte {
	return w.marshal(asn1.RawValue{Class: asn1.ClassUniversal, Tag: tag, IsCompound: true, Bytes: content})
}

func (w *writer) explicit(content []byte) []byte {
	return w.marshal(asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 0, IsCompound: true, Bytes: content})
}

// info is a ContentInfo of plain data.
func (w *writer) info(data []byte) []byte {
	return w.wrap(asn1.TagSequence, append(w.marshal(oidData), w.explicit(w.marshal(data))...))
}

// bag is a SafeBag with a certificate that is trusted.
func (w *writer) bag(name string, der []byte) []byte {
	cert := w.wrap(asn1.TagSequence, append(w.marshal(oidX509), w.explicit(w.marshal(der))...))
	attribute := func(oid asn1.ObjectIdentifier, value []byte) []byte {
		return w.wrap(asn1.TagSequence, append(w.marshal(oid), w.wrap(asn1.TagSet, value)...))
	}
	friendly := w.marshal(asn1.RawValue{Class: asn1.ClassUniversal, Tag: asn1.TagBMPString, Bytes: utf16be(name)})
	attributes := append(attribute(oidFriendlyName, friendly), attribute(oidTrusted, w.marshal(oidAnyUsage))...)
	out := append(w.marshal(oidCertBag), w.explicit(cert)...)
	return w.wrap(asn1.TagSequence, append(out, w.wrap(asn1.TagSet, attributes)...))
}

// sealPKCS12 is the code over a store (RFC 7292 §4, appendix B). The key has the
// length of a digest, so that one round of the derivation makes it.
func sealPKCS12(sum func() hash.Hash, salt []byte, rounds int, safe []byte) []byte {
	const block, purpose = 64, 3
	fill := func(b []byte) (out []byte) {
		for n := (len(b) + block - 1) / block * block; len(out) < n; {
			out = append(out, b[:min(len(b), n-len(out))]...)
		}
		return out
	}
	h := sum()
	for range block {
		h.Write([]byte{purpose})
	}
	h.Write(fill(salt))
	h.Write(fill(append(utf16be(Password), 0, 0)))
	key := h.Sum(nil)
	for range rounds - 1 {
		h.Reset()
		h.Write(key)
		key = h.Sum(nil)
	}
	mac := hmac.New(sum, key)
	mac.Write(safe)
	return mac.Sum(nil)
}
