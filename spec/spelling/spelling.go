// Package spelling says how far apart two words are, for suggestions after a slip.
// What is suggested, and how near it has to be, is for whoever asks.
package spelling

// Distance returns how many bytes to insert, delete or replace make b of a, or more
// than most if it is more than that. It takes no time for words whose lengths are
// further apart, and else the product of their lengths.
func Distance(a, b string, most int) int {
	if d := len(a) - len(b); d > most || -d > most {
		return most + 1
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
