package main

import (
	"errors"
	"fmt"
	"text/template"
	_ "unsafe" // go:linkname

	"clusterstack/oracle/protocol"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

//go:linkname helmFunctions helm.sh/helm/v3/pkg/engine.funcMap
func helmFunctions() template.FuncMap

func serve([]string) error {
	return protocol.Serve(protocol.Helm{Functions: helmFunctions, Render: render})
}

func render(path string, files map[string]string, given []byte) (map[string]string, error) {
	chart, err := load(path, files)
	if err != nil {
		return nil, err
	}
	values, err := chartutil.ReadValues(given)
	if err != nil {
		return nil, err
	}
	return renderChart(chart, values)
}

func load(path string, files map[string]string) (*chart.Chart, error) {
	if files == nil {
		return loader.Load(path)
	}
	var buffered []*loader.BufferedFile
	for _, name := range protocol.Sorted(files) {
		buffered = append(buffered, &loader.BufferedFile{Name: name, Data: []byte(files[name])})
	}
	return loader.LoadFiles(buffered)
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
	capabilities.HelmVersion.GoVersion = ""
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
