// Package filemode is the grammar of permissions as configs write them: three
// or four octal digits, such as 755, 0755 and 1777.
package filemode

// Parse returns the permission bits, including the set-id and sticky bits, that
// s spells. It is false for anything but three or four octal digits.
func Parse(s string) (uint32, bool) {
	if len(s) != 3 && len(s) != 4 {
		return 0, false
	}
	var bits uint32
	for i := range len(s) {
		if s[i] < '0' || s[i] > '7' {
			return 0, false
		}
		bits = bits<<3 | uint32(s[i]-'0')
	}
	return bits, true
}

// Fault is what a message says about text that Parse refuses.
const Fault = "must be three or four octal digits, such as 755 or 0755"
