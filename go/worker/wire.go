package worker

import (
	"encoding/binary"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// Values as they travel. The calls use pgconn, the lower half of pgx, and a few forms of parameters written
// here: pgx's own type registry would take a good part of the memory that an idle worker may have.
// Source: "Frontend/Backend Protocol" and "Arrays" in PostgreSQL's manual; array_recv in its arrayfuncs.c.

const (
	textOID  = 25
	byteaOID = 17
)

// textArray is a text[] in binary form; a nil element is NULL.
func textArray[T ~string | ~[]byte](values []T, isNull func(int) bool) []byte {
	return array(textOID, values, isNull)
}

func array[T ~string | ~[]byte](element uint32, values []T, isNull func(int) bool) []byte {
	size := 20
	for _, value := range values {
		size += 4 + len(value)
	}
	out := make([]byte, 0, size)
	if len(values) == 0 {
		out = binary.BigEndian.AppendUint32(out, 0) // no dimensions
		out = binary.BigEndian.AppendUint32(out, 0)
		return binary.BigEndian.AppendUint32(out, element)
	}
	out = binary.BigEndian.AppendUint32(out, 1)
	out = binary.BigEndian.AppendUint32(out, 1) // may hold NULLs
	out = binary.BigEndian.AppendUint32(out, element)
	out = binary.BigEndian.AppendUint32(out, uint32(len(values)))
	out = binary.BigEndian.AppendUint32(out, 1) // lower bound
	for i, value := range values {
		if isNull != nil && isNull(i) {
			out = binary.BigEndian.AppendUint32(out, 0xffffffff)
			continue
		}
		out = binary.BigEndian.AppendUint32(out, uint32(len(value)))
		out = append(out, value...)
	}
	return out
}

// list is an array in text form, of elements that need no quotes.
func list(length int, element func(int) string) []byte {
	var out strings.Builder
	out.WriteByte('{')
	for i := range length {
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteString(element(i))
	}
	out.WriteByte('}')
	return []byte(out.String())
}

func integers(values []int64) []byte {
	return list(len(values), func(i int) string { return strconv.FormatInt(values[i], 10) })
}

func interval(value time.Duration) string {
	return strconv.FormatFloat(value.Seconds(), 'f', 6, 64) + "s"
}

// seconds reads a number that anybody may have written to the table: at most a century either way, 0 for NaN.
func seconds(text []byte) (time.Duration, error) {
	const century = 100 * 366 * 86400
	value, err := strconv.ParseFloat(string(text), 64)
	if errors.Is(err, strconv.ErrRange) { // an infinity, which is what was meant
		err = nil
	}
	if err != nil || math.IsNaN(value) {
		return 0, err
	}
	return time.Duration(min(max(value, -century), century) * float64(time.Second)), nil
}
