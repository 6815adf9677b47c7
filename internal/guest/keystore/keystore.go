// Package keystore adds authorities to what Java trusts: a key store in the format
// JKS, or PKCS #12 with or without a password, as JDKs come with. It stands on the
// standard library, since the guest links it, and reads no key.
package keystore

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"unicode/utf16"
)

// Password is what the stores of JDKs are sealed with. It protects nothing: it is
// the same everywhere.
const Password = "changeit"

// ErrPassword means that a store has another password than [Password].
var ErrPassword = errors.New("the key store has a password of its own")

// alias names a certificate that is added: never twice, since an entry of the
// same name would take the place of another.
func alias(der []byte) string {
	sum := sha256.Sum256(der)
	return "kitbox-" + hex.EncodeToString(sum[:8])
}

// Add returns store with the certificates of text, in PEM, that it does not have
// yet; the same store if it has all. What it cannot read it does not change.
func Add(store []byte, text string) ([]byte, error) {
	var certs [][]byte
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type == "CERTIFICATE" && !bytes.Contains(store, block.Bytes) {
			certs = append(certs, block.Bytes)
		}
	}
	if len(certs) == 0 {
		return store, nil
	}
	if len(store) >= 4 && binary.BigEndian.Uint32(store) == magic {
		return addJKS(store, certs)
	}
	return addPKCS12(store, certs)
}

const (
	magic    = 0xfeedfeed
	trusted  = 2
	maxEntry = 1 << 20
)

// addJKS adds entries to a store of Sun's format: big-endian numbers, and texts
// with a length of two bytes.
func addJKS(store []byte, certs [][]byte) ([]byte, error) {
	const head = 12 // magic, version, number of entries
	if len(store) < head+sha1.Size {
		return nil, errors.New("the key store is cut off")
	}
	body, seal := store[:len(store)-sha1.Size], store[len(store)-sha1.Size:]
	if v := binary.BigEndian.Uint32(body[4:]); v != 2 {
		return nil, fmt.Errorf("a key store of version %d", v)
	}
	if !bytes.Equal(sealJKS(body), seal) {
		return nil, ErrPassword
	}
	count := binary.BigEndian.Uint32(body[8:])
	if count > maxEntry {
		return nil, fmt.Errorf("a key store of %d entries", count)
	}
	out := slices.Clone(body)
	binary.BigEndian.PutUint32(out[8:], count+uint32(len(certs)))
	text := func(s string) {
		out = binary.BigEndian.AppendUint16(out, uint16(len(s)))
		out = append(out, s...)
	}
	for _, der := range certs {
		out = binary.BigEndian.AppendUint32(out, trusted)
		text(alias(der))
		out = binary.BigEndian.AppendUint64(out, 0) // made in 1970: the same every time
		text("X.509")
		out = binary.BigEndian.AppendUint32(out, uint32(len(der)))
		out = append(out, der...)
	}
	return append(out, sealJKS(out)...), nil
}

// sealJKS is the digest at the end of a store.
func sealJKS(body []byte) []byte {
	h := sha1.New()
	h.Write(utf16be(Password))
	h.Write([]byte("Mighty Aphrodite")) // so that it is of no use for passwords
	h.Write(body)
	return h.Sum(nil)
}

func utf16be(s string) (b []byte) {
	for _, u := range utf16.Encode([]rune(s)) {
		b = binary.BigEndian.AppendUint16(b, u)
	}
	return b
}
