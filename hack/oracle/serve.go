package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"
	"text/template"
	"time"
	_ "unsafe" // go:linkname

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

// The longest that one rendering may take. One that takes longer is given up; it goes on in its goroutine.
const patience = 10 * time.Second

// A line on standard input. One of Chart, Files, Templates and Template says what is rendered.
type request struct {
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

//go:linkname helmFunctions helm.sh/helm/v3/pkg/engine.funcMap
func helmFunctions() template.FuncMap

// Go's own; they are fixed by the language.
const builtins = "and call eq ge gt html index js le len lt ne not or print printf println slice urlquery"

const oneName = "demo/templates/t.txt"

// serve answers each line on standard input with one on standard output. A stack overflow ends the process: Go offers
// no way to survive one.
func serve([]string) error {
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
		if encodeError := encoder.Encode(answer(line)); encodeError != nil {
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

func answer(line []byte) response {
	done := make(chan response, 1)
	go func() {
		defer func() {
			if problem := recover(); problem != nil {
				done <- response{Error: fmt.Sprintf("panic: %v", problem)}
			}
		}()
		var asked request
		if err := json.Unmarshal(line, &asked); err != nil {
			done <- response{Error: "request: " + err.Error()}
			return
		}
		answered, err := render(&asked)
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

func render(asked *request) (response, error) {
	if asked.Functions {
		names := strings.Fields(builtins)
		for name := range helmFunctions() {
			names = append(names, name)
		}
		sort.Strings(names)
		return response{Functions: names}, nil
	}
	chart, err := load(asked)
	if err != nil {
		return response{}, err
	}
	values, err := readValues(asked.Values)
	if err != nil {
		return response{}, err
	}
	files, err := renderChart(chart, values)
	if err != nil {
		return response{}, err
	}
	if asked.Template != "" {
		text := files[oneName]
		return response{Text: &text}, nil
	}
	return response{Files: files}, nil
}

func load(asked *request) (*chart.Chart, error) {
	if asked.Chart != "" {
		return loader.Load(asked.Chart)
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
	var buffered []*loader.BufferedFile
	for name, text := range files {
		buffered = append(buffered, &loader.BufferedFile{Name: name, Data: []byte(text)})
	}
	sort.Slice(buffered, func(a, b int) bool { return buffered[a].Name < buffered[b].Name })
	return loader.LoadFiles(buffered)
}

func readValues(raw json.RawMessage) (map[string]any, error) {
	if len(raw) == 0 {
		return map[string]any{}, nil
	}
	var text string
	if json.Unmarshal(raw, &text) != nil {
		text = string(raw)
	}
	return chartutil.ReadValues([]byte(text))
}

// renderChart does what `helm template demo CHART -n demo-ns --kube-version v1.34.2` does up to the texts of the files.
func renderChart(chart *chart.Chart, values map[string]any) (map[string]string, error) {
	if kind := chart.Metadata.Type; kind != "" && kind != "application" {
		return nil, fmt.Errorf("%s charts are not installable", kind)
	}
	if err := checkDependencies(chart); err != nil {
		return nil, err
	}
	if err := chartutil.ProcessDependenciesWithMerge(chart, values); err != nil {
		return nil, err
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = chartutil.KubeVersion{Version: "v1.34.2", Major: "1", Minor: "34"}
	capabilities.HelmVersion.Version = "v3.21.4"
	options := chartutil.ReleaseOptions{Name: "demo", Namespace: "demo-ns", Revision: 1, IsInstall: true}
	merged, err := chartutil.ToRenderValues(chart, values, options, capabilities)
	if err != nil {
		return nil, err
	}
	if wanted := chart.Metadata.KubeVersion; wanted != "" {
		if !chartutil.IsCompatibleRange(wanted, capabilities.KubeVersion.String()) {
			return nil, errors.New("chart requires kubeVersion " + wanted)
		}
	}
	return engine.Engine{}.Render(chart, merged)
}

func checkDependencies(chart *chart.Chart) error {
	for _, wanted := range chart.Metadata.Dependencies {
		found := false
		for _, child := range chart.Dependencies() {
			found = found || child.Name() == wanted.Name
		}
		if !found {
			return errors.New("found in Chart.yaml, but missing in charts/ directory: " + wanted.Name)
		}
	}
	return nil
}
