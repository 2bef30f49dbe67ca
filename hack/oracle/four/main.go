// Command four is Helm 4 itself, in-process, as `oracle serve` is Helm 3.
package main

import (
	"errors"
	"fmt"
	"os"
	"text/template"
	_ "unsafe" // go:linkname

	"clusterstack/oracle/protocol"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
)

//go:linkname helmFunctions helm.sh/helm/v4/pkg/engine.funcMap
func helmFunctions() template.FuncMap

func main() {
	if len(os.Args) != 2 || os.Args[1] != "serve" {
		fmt.Fprintln(os.Stderr, "usage: four serve")
		os.Exit(2)
	}
	if err := protocol.Serve(protocol.Helm{Functions: helmFunctions, Render: render}); err != nil {
		fmt.Fprintln(os.Stderr, "four:", err)
		os.Exit(1)
	}
}

// render does what `helm template demo CHART -n demo-ns --kube-version v1.34.2` does up to the texts of the files.
func render(path string, files map[string]string, given []byte) (map[string]string, error) {
	chart, err := load(path, files)
	if err != nil {
		return nil, err
	}
	values, err := common.ReadValues(given)
	if err != nil {
		return nil, err
	}
	if kind := chart.Metadata.Type; kind != "" && kind != "application" {
		return nil, fmt.Errorf("%s charts are not installable", kind)
	}
	if err := checkDependencies(chart); err != nil {
		return nil, err
	}
	if err := chartutil.ProcessDependencies(chart, values); err != nil {
		return nil, err
	}
	version, err := common.ParseKubeVersion("v1.34.2")
	if err != nil {
		return nil, err
	}
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *version
	capabilities.HelmVersion.Version = "v4.3.1"
	capabilities.HelmVersion.GoVersion = ""
	options := common.ReleaseOptions{Name: "demo", Namespace: "demo-ns", Revision: 1, IsInstall: true}
	merged, err := util.ToRenderValues(chart, values, options, capabilities)
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

func load(path string, files map[string]string) (*chart.Chart, error) {
	if files == nil {
		return loader.Load(path)
	}
	var buffered []*archive.BufferedFile
	for _, name := range protocol.Sorted(files) {
		buffered = append(buffered, &archive.BufferedFile{Name: name, Data: []byte(files[name])})
	}
	return loader.LoadFiles(buffered)
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
