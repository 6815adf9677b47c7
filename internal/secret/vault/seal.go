package vault

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kitbox-dev/kitbox/internal/secret"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A Secret is what is sealed: exactly one of its fields is set.
type Secret struct {
	Value  secret.Value
	Helper *Helper
	Tokens *Tokens
}

// A Helper is a command of the host that prints a token, and the variables that
// it runs with.
type Helper struct {
	Command string   `json:"command"` // for sh -c
	Env     []string `json:"env,omitempty"`
}

// Tokens are what an OAuth server handed out.
type Tokens struct {
	Access  secret.Value
	Refresh secret.Value // none: they cannot be refreshed
	Key     secret.Value // an API key that came with them; often none
	Expires time.Time    // of Access; zero: not known
	Scopes  []string

	// Params are what a refresh takes besides the token, such as client_id.
	Params map[string]string
}

func (s Secret) form() string {
	switch {
	case s.Helper != nil:
		return FormCommand
	case s.Tokens != nil:
		return FormOAuth
	}
	return FormValue
}

// plain is a [Secret] as it is sealed. Only this file has one.
type plain struct {
	Value  []byte       `json:"value,omitempty"`
	Helper *Helper      `json:"helper,omitempty"`
	Tokens *plainTokens `json:"tokens,omitempty"`
}

type plainTokens struct {
	Access  []byte            `json:"access"`
	Refresh []byte            `json:"refresh,omitempty"`
	Key     []byte            `json:"key,omitempty"`
	Expires time.Time         `json:"expires,omitzero"`
	Scopes  []string          `json:"scopes,omitempty"`
	Params  map[string]string `json:"params,omitempty"`
}

// seal encrypts s. What may be shown of it is bound to it: another name or scope
// cannot be put over the same bytes.
func seal(key []byte, e Entry, s Secret) ([]byte, error) {
	p := plain{Value: s.Value.Expose(), Helper: s.Helper}
	if t := s.Tokens; t != nil {
		p.Tokens = &plainTokens{Access: t.Access.Expose(), Refresh: t.Refresh.Expose(), Key: t.Key.Expose(), Expires: t.Expires, Scopes: t.Scopes, Params: t.Params}
	}
	text, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	defer clear(text)
	shown, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	a, err := aead(key)
	if err != nil {
		return nil, err
	}
	return a.Seal(nil, nil, text, shown), nil
}

func open(key []byte, f file) (Secret, error) {
	a, err := aead(key)
	if err != nil {
		return Secret{}, err
	}
	shown, err := json.Marshal(f.Secret)
	if err != nil {
		return Secret{}, err
	}
	text, err := a.Open(nil, nil, f.Sealed, shown)
	if err != nil {
		return Secret{}, errors.New("it was changed, or sealed with another key; set the secret again")
	}
	defer clear(text)
	var p plain
	if err := json.Unmarshal(text, &p); err != nil {
		return Secret{}, errors.New("what is sealed there cannot be read; set the secret again") // the cause might quote it
	}
	s := Secret{Helper: p.Helper}
	if len(p.Value) > 0 {
		s.Value = secret.New(p.Value)
	}
	if t := p.Tokens; t != nil {
		s.Tokens = &Tokens{Access: secret.New(t.Access), Refresh: secret.New(t.Refresh), Key: secret.New(t.Key), Expires: t.Expires, Scopes: t.Scopes, Params: t.Params}
	}
	return s, nil
}

func aead(key []byte) (cipher.AEAD, error) {
	b, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(b)
}

// keyName is the file of the key; keyForm begins it.
const (
	keyName = "key"
	keyForm = "kitbox-vault-1 "
	keyLen  = 32
)

// readKey returns the key. It is read once: a home does not change it.
func (v *Vault) readKey() ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.key != nil {
		return v.key, nil
	}
	path := filepath.Join(v.dir, keyName)
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is gone, and what it sealed cannot be read without it; set the secrets again: %w", path, err)
	}
	if err != nil {
		return nil, durable.Explain(path, err)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s can be read by others than its owner: take that from them with chmod 600, and think of the secrets as known: %w", path, kiterr.ErrRefused)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, durable.Explain(path, err)
	}
	text, ok := strings.CutPrefix(strings.TrimSpace(string(data)), keyForm)
	key, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(key) != keyLen {
		return nil, fmt.Errorf("%s is not a key of this kitbox; delete it and set the secrets again", path)
	}
	v.key = key
	return key, nil
}

// makeKey is readKey, and makes one if there is none; the lock is held.
func (v *Vault) makeKey() ([]byte, error) {
	key, err := v.readKey()
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	key = make([]byte, keyLen)
	if _, err := rand.Read(key); err != nil {
		return nil, err
	}
	path := filepath.Join(v.dir, keyName)
	text := keyForm + base64.StdEncoding.EncodeToString(key) + "\n"
	if err := durable.WriteFile(path, []byte(text), 0o600); err != nil {
		return nil, durable.Explain(path, err)
	}
	return v.readKey()
}
