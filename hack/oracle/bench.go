package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"sort"
	"strings"
	"syscall"
	"time"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
)

// timing is one line of the output; ours prints the same (hack/bench-render.rs).
type timing struct {
	Engine     string  `json:"engine"`
	Chart      string  `json:"chart"`
	Mode       string  `json:"mode"`
	MinUs      float64 `json:"min_us"`
	MedianUs   float64 `json:"median_us"`
	Iterations int     `json:"iterations"`
	PeakRSSKiB int64   `json:"peak_rss_kib"`
}

// bench times Helm's engine on one chart, as `helm template` uses it.
//
// Modes: "engine" merges values and renders; "sorted" also reads the kinds of the manifests and sorts them, which ours
// always does; "cold" is "engine" from the chart's files on. Reading the archive is never timed.
func bench(arguments []string) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	name := flags.String("name", "chart", "what the lines are called")
	mode := flags.String("mode", "engine", "engine, sorted or cold")
	seconds := flags.Float64("seconds", 1, "renders for that long")
	valuesFile := flags.String("values", "", "values for the chart")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("bench wants one packaged chart")
	}
	archive, err := os.ReadFile(flags.Arg(0))
	if err != nil {
		return err
	}
	files, err := loader.LoadArchiveFiles(bytes.NewReader(archive))
	if err != nil {
		return err
	}
	values := chartutil.Values{}
	if *valuesFile != "" {
		if values, err = chartutil.ReadValuesFile(*valuesFile); err != nil {
			return err
		}
	}
	version, err := chartutil.ParseKubeVersion("v1.34.2")
	if err != nil {
		return err
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *version
	render := func(chart *chart.Chart) error {
		texts, err := rendered(chart, values, capabilities)
		if err == nil && *mode == "sorted" {
			maps.DeleteFunc(texts, func(path, _ string) bool { return strings.HasSuffix(path, "NOTES.txt") })
			_, _, err = releaseutil.SortManifests(texts, nil, releaseutil.InstallOrder)
		}
		return err
	}
	once := func() (time.Duration, error) {
		start := time.Now()
		loaded, err := loader.LoadFiles(files)
		if err != nil {
			return 0, err
		}
		if *mode != "cold" {
			start = time.Now()
		}
		// The chart is loaded anew each time: Helm changes it while it renders.
		err = render(loaded)
		return time.Since(start), err
	}
	if _, err := once(); err != nil {
		return err
	}
	var times []time.Duration
	for end := time.Now().Add(time.Duration(*seconds * float64(time.Second))); len(times) < 5 || time.Now().Before(end); {
		took, err := once()
		if err != nil {
			return err
		}
		times = append(times, took)
	}
	sort.Slice(times, func(a, b int) bool { return times[a] < times[b] })
	micros := func(took time.Duration) float64 { return float64(took.Nanoseconds()) / 1000 }
	line, err := json.Marshal(timing{
		Engine:     "helm",
		Chart:      *name,
		Mode:       *mode,
		MinUs:      micros(times[0]),
		MedianUs:   micros(times[len(times)/2]),
		Iterations: len(times),
		PeakRSSKiB: peakMemory(),
	})
	if err != nil {
		return err
	}
	fmt.Println(string(line))
	return nil
}

// rendered merges the values and executes the templates.
func rendered(chart *chart.Chart, values chartutil.Values, capabilities *chartutil.Capabilities) (map[string]string, error) {
	if err := chartutil.ProcessDependencies(chart, values); err != nil {
		return nil, err
	}
	options := chartutil.ReleaseOptions{Name: "demo", Namespace: "demo-ns", Revision: 1, IsInstall: true}
	merged, err := chartutil.ToRenderValues(chart, values, options, capabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(chart, merged)
}

// peakMemory is the most memory that the process has held, in KiB.
func peakMemory() int64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return usage.Maxrss
}
