package worker

import (
	"slices"
	"strings"
)

// elsewhere are the settings of src/taskgate/settings.py that this worker does not read, and what Compose and the
// launchers read: no slips of the pen.
var elsewhere = strings.Fields(`
	AGEING_SECONDS ALLOW_ANONYMOUS API_KEY API_KEYS COMPAT MAX_ATTEMPTS MAX_BODY_BYTES PORT RESULT_TTL_SECONDS UPSTREAMS_FILE URL
	API_CPUS IMAGE PUBLISHED_PORT PYTHON PYTHON_SLOTS STOP_SECONDS WORKERS WORKER_IMAGE`)

// slips tells of the variables that are no setting but are one or two letters off one: "unknown setting TASKGATE_SLOT;
// did you mean TASKGATE_SLOTS?" by name. environ is as of os.Environ, known what is read, without _FILE.
func slips(environ, known []string) map[string]string {
	const prefix = "TASKGATE_"
	found := map[string]string{}
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		word, ours := strings.CutPrefix(strings.TrimSuffix(name, "_FILE"), prefix)
		if !ours || slices.Contains(known, prefix+word) || slices.Contains(elsewhere, word) || slices.Contains(elsewhere, name[len(prefix):]) {
			continue
		}
		best, least := "", 3
		for _, each := range known {
			if setting, ours := strings.CutPrefix(each, prefix); ours && len(setting) > 4 {
				if n := distance(word, setting); n < least {
					best, least = each, n
				}
			}
		}
		if best != "" {
			found[name] = "unknown setting " + name + "; did you mean " + best + strings.TrimPrefix(name, prefix+word) + "?"
		}
	}
	return found
}

// distance is Levenshtein's: how many letters to put in, take out or replace.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := before
			if a[i] != b[j] {
				replaced++
			}
			before = row[j+1]
			row[j+1] = min(replaced, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
