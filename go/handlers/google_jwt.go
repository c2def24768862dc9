package handlers

import (
	"cmp"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"net/url"
	"time"
)

// fromServiceAccount signs a claim with the account's key and changes it for a token: RFC 7523, 2.1; RS256.
func (g *googleCredentials) fromServiceAccount(ctx context.Context, file credentialsFile) (string, time.Duration, error) {
	key, err := privateKey(file.PrivateKey)
	if err != nil {
		return "", 0, err
	}
	address := cmp.Or(file.TokenURI, "https://oauth2.googleapis.com/token")
	signed, err := serviceAccountJWT(key, file, address, time.Now())
	if err != nil {
		return "", 0, badCredentials("private_key of the credentials file cannot sign: %v", err)
	}
	return g.exchange(ctx, address, url.Values{
		"grant_type": {"urn:ietf:params:oauth:grant-type:jwt-bearer"}, "assertion": {signed},
	})
}

func privateKey(text string) (*rsa.PrivateKey, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, badCredentials("private_key of the credentials file is not PEM")
	}
	if parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
		if key, ok := parsed.(*rsa.PrivateKey); ok {
			return key, nil
		}
	}
	key, err := x509.ParsePKCS1PrivateKey(block.Bytes)
	if err != nil {
		return nil, badCredentials("private_key of the credentials file is no RSA key")
	}
	return key, nil
}

func serviceAccountJWT(key *rsa.PrivateKey, file credentialsFile, audience string, at time.Time) (string, error) {
	header := object{{"alg", encode("RS256")}, {"typ", encode("JWT")}}
	if file.PrivateKeyID != "" {
		header = append(header, member{"kid", encode(file.PrivateKeyID)})
	}
	claims := object{
		{"iss", encode(file.ClientEmail)}, {"scope", encode(googleScope)}, {"aud", encode(audience)},
		{"iat", encode(at.Unix())}, {"exp", encode(at.Add(time.Hour).Unix())},
	}
	text := base64.RawURLEncoding.EncodeToString(header.raw()) + "." + base64.RawURLEncoding.EncodeToString(claims.raw())
	sum := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	if err != nil {
		return "", err
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(signature), nil
}
