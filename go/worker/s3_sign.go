package worker

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"time"
)

// awsSigner signs requests to S3. Source: "Create a signed AWS API request", Signature Version 4.
type awsSigner struct{ id, secret, token, region string }

func (s awsSigner) sign(request *http.Request, body []byte, at time.Time) {
	moment := at.UTC().Format("20060102T150405Z")
	sum := sha256.Sum256(body)
	hash := hex.EncodeToString(sum[:])
	request.Header.Set("X-Amz-Date", moment)
	request.Header.Set("X-Amz-Content-Sha256", hash)
	names := []string{"host", "x-amz-content-sha256", "x-amz-date"}
	if s.token != "" {
		request.Header.Set("X-Amz-Security-Token", s.token)
		names = append(names, "x-amz-security-token")
	}
	var headers strings.Builder
	for _, name := range names {
		value := request.Header.Get(name)
		if name == "host" {
			value = request.URL.Host
		}
		headers.WriteString(name + ":" + value + "\n")
	}
	// url.Values.Encode has sorted the query
	query := request.URL.RawQuery
	canonical := strings.Join([]string{request.Method, request.URL.EscapedPath(), query, headers.String(), strings.Join(names, ";"), hash}, "\n")
	scope := moment[:8] + "/" + s.region + "/s3/aws4_request"
	whole := sha256.Sum256([]byte(canonical))
	key := []byte("AWS4" + s.secret)
	for _, part := range strings.Split(scope, "/") {
		key = hmacSHA256(key, part)
	}
	signature := hmacSHA256(key, "AWS4-HMAC-SHA256\n"+moment+"\n"+scope+"\n"+hex.EncodeToString(whole[:]))
	request.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+s.id+"/"+scope+",SignedHeaders="+strings.Join(names, ";")+",Signature="+hex.EncodeToString(signature))
}

func hmacSHA256(key []byte, text string) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

// awsPath encodes a key: everything but unreserved characters and slashes.
func awsPath(key string) string {
	parts := strings.Split(key, "/")
	for i := range parts {
		parts[i] = percent(parts[i])
	}
	return strings.Join(parts, "/")
}
