// Package protocol is what the tests speak with the oracles: a line of JSON for each question and each answer.
package protocol

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"text/template"
	"time"
)

// The longest that one rendering may take. One that takes longer is given up; it goes on in its goroutine.
const patience = 10 * time.Second

// Request is a line on standard input. One of Chart, Files, Templates and Template says what is rendered.
type Request struct {
	// Where a chart lies: a folder or an archive.
	Chart string `json:"chart"`
	// The files of a chart, with Chart.yaml.
	Files map[string]string `json:"files"`
	// Templates by their name below templates/.
	Templates map[string]string `json:"templates"`
	// One template.
	Template string `json:"template"`
	// The user's values: text is read as YAML, anything else is taken as it is.
	Values json.RawMessage `json:"values"`
	// Asks for the names of all functions instead.
	Functions bool `json:"functions"`
}

// A line on standard output: the text of each file, or why there is none.
type response struct {
	Files     map[string]string `json:"files,omitempty"`
	Text      *string           `json:"text,omitempty"`
	Functions []string          `json:"functions,omitempty"`
	Error     string            `json:"error,omitempty"`
}

// Helm is one version of Helm.
type Helm struct {
	// Functions are those of templates, but for Go's own.
	Functions func() template.FuncMap
	// Render gives the texts of a chart's files. Files is nil if the chart lies somewhere.
	Render func(chart string, files map[string]string, values []byte) (map[string]string, error)
}

// Go's own; they are fixed by the language.
const builtins = "and call eq ge gt html index js le len lt ne not or print printf println slice urlquery"

const oneName = "demo/templates/t.txt"

// Serve answers each line on standard input with one on standard output. A stack overflow ends the process: Go offers
// no way to survive one.
func Serve(helm Helm) error {
	time.Local = time.UTC
	input := bufio.NewReaderSize(os.Stdin, 1<<20)
	output := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(output)
	encoder.SetEscapeHTML(false)
	for {
		line, err := input.ReadBytes('\n')
		if len(line) == 0 {
			return nil
		}
		if encodeError := encoder.Encode(answer(helm, line)); encodeError != nil {
			return encodeError
		}
		if flushError := output.Flush(); flushError != nil {
			return flushError
		}
		if err != nil {
			return nil
		}
	}
}

func answer(helm Helm, line []byte) response {
	done := make(chan response, 1)
	go func() {
		defer func() {
			if problem := recover(); problem != nil {
				done <- response{Error: fmt.Sprintf("panic: %v", problem)}
			}
		}()
		var asked Request
		if err := json.Unmarshal(line, &asked); err != nil {
			done <- response{Error: "request: " + err.Error()}
			return
		}
		answered, err := render(helm, &asked)
		if err != nil {
			answered = response{Error: err.Error()}
		}
		done <- answered
	}()
	select {
	case answered := <-done:
		return answered
	case <-time.After(patience):
		return response{Error: "timeout"}
	}
}

func render(helm Helm, asked *Request) (response, error) {
	if asked.Functions {
		names := strings.Fields(builtins)
		for name := range helm.Functions() {
			names = append(names, name)
		}
		sort.Strings(names)
		return response{Functions: names}, nil
	}
	files, err := helm.Render(asked.Chart, chartFiles(asked), values(asked.Values))
	if err != nil {
		return response{}, err
	}
	if asked.Template != "" {
		text := files[oneName]
		return response{Text: &text}, nil
	}
	return response{Files: files}, nil
}

// chartFiles are the files of the chart, unless it lies somewhere.
func chartFiles(asked *Request) map[string]string {
	if asked.Chart != "" {
		return nil
	}
	files := asked.Files
	if files == nil {
		files = map[string]string{"Chart.yaml": "apiVersion: v2\nname: demo\nversion: 1.0.0\n"}
		for name, text := range asked.Templates {
			files["templates/"+name] = text
		}
		if asked.Template != "" {
			files["templates/t.txt"] = asked.Template
		}
	}
	return files
}

// values are the user's as YAML.
func values(raw json.RawMessage) []byte {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return []byte(text)
	}
	return raw
}

// Sorted are the names of files in order: what a chart is loaded from has one.
func Sorted(files map[string]string) []string {
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}
