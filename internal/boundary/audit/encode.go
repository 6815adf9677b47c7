package audit

import (
	"encoding/json"
	"strconv"
	"time"
)

// appendLine appends d as a line. It is what package json makes of a Decision, in a
// fourth of the time: connections are cut, and hundreds of requests with them, while
// somebody waits for the log.
func appendLine(b []byte, d *Decision) ([]byte, error) {
	b = strconv.AppendInt(append(b, `{"schema":`...), int64(d.Schema), 10)
	if y := d.Time.Year(); y < 0 || y > 9999 {
		_, err := json.Marshal(d.Time)
		return b, err
	}
	b = d.Time.AppendFormat(append(b, `,"time":"`...), time.RFC3339Nano)
	b = append(b, '"')
	b = appendField(b, "sandbox", d.Sandbox)
	b = appendField(b, "phase", string(d.Phase))
	b = appendField(b, "kind", string(d.Kind))
	b = appendField(b, "verdict", d.Verdict)
	b = appendField(b, "host", d.Host)
	if d.Port != 0 {
		b = strconv.AppendUint(append(b, `,"port":`...), uint64(d.Port), 10)
	}
	for _, f := range [...]struct{ name, value string }{
		{"protocol", d.Protocol}, {"method", d.Method}, {"path", d.Path}, {"rule", d.Rule}, {"source", d.Source},
	} {
		if f.value != "" {
			b = appendField(b, f.name, f.value)
		}
	}
	b = appendField(b, "why", d.Why)
	if d.Credential != "" {
		b = appendField(b, "credential", d.Credential)
	}
	if d.Dialled != "" {
		b = appendField(b, "dialled", d.Dialled)
	}
	b = strconv.AppendInt(append(b, `,"count":`...), int64(d.Count), 10)
	return append(b, '}', '\n'), nil
}

func appendField(b []byte, name, value string) []byte {
	b = append(append(append(b, `,"`...), name...), `":`...)
	for i := range len(value) {
		if c := value[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			quoted, _ := json.Marshal(value) // of a string it cannot fail
			return append(b, quoted...)
		}
	}
	b = append(append(b, '"'), value...)
	return append(b, '"')
}
