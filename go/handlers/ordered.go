package handlers

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// member is one key of a JSON object. Objects are kept as lists of members with their values as raw text, never as
// maps: the order of keys (of a schema's properties, above all) steers a model.
type member struct {
	key   string
	value json.RawMessage
}

type object []member

// parseObject reads a JSON object one level deep. Of a key that is doubled the last value counts, in the first's place.
func parseObject(text []byte) (object, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
		return nil, errors.New("is not a JSON object")
	}
	var out object
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, err
		}
		out.set(token.(string), value)
	}
	if _, err := decoder.Token(); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, errors.New("has text after its end")
	}
	return out, nil
}

// get is the value of a key; nil if there is none, or if it is null.
func (o object) get(key string) json.RawMessage {
	for _, each := range o {
		if each.key == key && string(each.value) != "null" {
			return each.value
		}
	}
	return nil
}

func (o *object) set(key string, value json.RawMessage) {
	for i := range *o {
		if (*o)[i].key == key {
			(*o)[i].value = value
			return
		}
	}
	*o = append(*o, member{key, value})
}

// MarshalJSON writes the members in their order, the values as they are.
func (o object) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	out.WriteByte('{')
	for i, each := range o {
		if i > 0 {
			out.WriteByte(',')
		}
		out.Write(encode(each.key))
		out.WriteByte(':')
		out.Write(each.value)
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// raw is the object's text. Unlike json.Marshal it leaves every byte of the values alone.
func (o object) raw() json.RawMessage {
	text, _ := o.MarshalJSON()
	return text
}

func rawList(items []json.RawMessage) json.RawMessage {
	return append(append([]byte{'['}, bytes.Join(toBytes(items), []byte{','})...), ']')
}

func toBytes(items []json.RawMessage) [][]byte {
	out := make([][]byte, len(items))
	for i := range items {
		out[i] = items[i]
	}
	return out
}

// encode is the JSON of a value that cannot fail, with <, > and & as they are.
func encode(value any) json.RawMessage {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(value)
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

func asString(text json.RawMessage) (string, bool) {
	var out *string
	if err := json.Unmarshal(text, &out); err != nil || out == nil {
		return "", false
	}
	return *out, true
}

func asList(text json.RawMessage) ([]json.RawMessage, bool) {
	var out []json.RawMessage
	if err := json.Unmarshal(text, &out); err != nil || out == nil {
		return nil, false
	}
	return out, true
}

func isObject(text json.RawMessage) bool {
	trimmed := bytes.TrimLeft(text, " \t\r\n")
	return len(trimmed) > 0 && trimmed[0] == '{'
}
