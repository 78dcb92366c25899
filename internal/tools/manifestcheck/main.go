// Manifestcheck fails if Kubernetes would not accept a file of manifests, or if the manifests do
// not fit together or with their program. It is a module of its own: the types of Kubernetes
// require dependencies that the other modules do not have.
//
//	manifestcheck manifests.yaml flags.txt
//
// Objects are decoded strictly into the types of the Kubernetes API: unknown, repeated and
// misspelled fields fail, and so do values of another type. Then they are validated with the
// OpenAPI schemas of the API in schema.json: required fields that are missing and values that an
// enumeration does not have fail. Rules that are in neither, such as those between two fields, are
// checked only as far as the code below has them. flags.txt is what the program prints for -h.
package main

import (
	"fmt"
	"log"
	"os"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: manifestcheck manifests.yaml flags.txt")
	}
	content, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	usage, err := os.ReadFile(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	count, errs := check(content, string(usage))
	for _, err := range errs {
		log.Print(err)
	}
	if len(errs) > 0 {
		os.Exit(1)
	}
	log.Printf("%d manifests", count)
}

// manifests are the objects of a file, by kind.
type manifests struct {
	schemas      *schemas
	services     []*corev1.Service
	statefulSets []*appsv1.StatefulSet
	deployments  []*appsv1.Deployment
	budgets      []*policyv1.PodDisruptionBudget
	policies     []*networkingv1.NetworkPolicy
	pods         []pod
}

// A pod is the template of the pods of an object.
type pod struct {
	owner    string
	template *corev1.PodTemplateSpec
	claims   []corev1.PersistentVolumeClaim
}

// check returns how many objects a file has, and what is wrong with them.
func check(content []byte, usage string) (count int, errs []error) {
	s, err := loadSchemas()
	if err != nil {
		return 0, []error{err}
	}
	m := &manifests{schemas: s}
	for _, document := range regexp.MustCompile(`(?m)^---\s*$`).Split(string(content), -1) {
		if err := m.decode([]byte(document)); err != nil {
			errs = append(errs, err)
		}
		count++
	}
	if len(errs) > 0 {
		return count, errs
	}
	report := func(owner, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", owner, fmt.Sprintf(format, args...)))
	}
	for _, p := range m.pods {
		p.check(report)
		p.checkArguments(usage, report)
	}
	m.checkReferences(report)
	return count, errs
}

// decode decodes one object strictly.
func (m *manifests) decode(document []byte) error {
	var kind metav1.PartialObjectMetadata
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return err
	}
	owner := kind.Kind + " " + kind.Name
	var object model
	switch kind.APIVersion + " " + kind.Kind {
	case "v1 Service":
		m.services = append(m.services, new(corev1.Service))
		object = m.services[len(m.services)-1]
	case "apps/v1 StatefulSet":
		s := new(appsv1.StatefulSet)
		m.statefulSets, object = append(m.statefulSets, s), s
	case "apps/v1 Deployment":
		d := new(appsv1.Deployment)
		m.deployments, object = append(m.deployments, d), d
	case "policy/v1 PodDisruptionBudget":
		b := new(policyv1.PodDisruptionBudget)
		m.budgets, object = append(m.budgets, b), b
	case "networking.k8s.io/v1 NetworkPolicy":
		n := new(networkingv1.NetworkPolicy)
		m.policies, object = append(m.policies, n), n
	default:
		return fmt.Errorf("%s: unknown kind %q of %q", owner, kind.Kind, kind.APIVersion)
	}
	if wrong := validation.IsDNS1123Label(kind.Name); len(wrong) > 0 {
		return fmt.Errorf("%s: name: %s", owner, strings.Join(wrong, ", "))
	}
	if err := yaml.UnmarshalStrict(document, object); err != nil {
		return fmt.Errorf("%s: %w", owner, err)
	}
	if err := m.schemas.validate(document, object); err != nil {
		return fmt.Errorf("%s: %w", owner, err)
	}
	switch o := object.(type) {
	case *appsv1.StatefulSet:
		m.pods = append(m.pods, pod{owner, &o.Spec.Template, o.Spec.VolumeClaimTemplates})
	case *appsv1.Deployment:
		m.pods = append(m.pods, pod{owner, &o.Spec.Template, nil})
	}
	return nil
}

// A reporter is told what is wrong with an object.
type reporter func(owner, format string, args ...any)

// check reports what is missing in a pod, and names in it that name nothing.
func (p pod) check(report reporter) {
	volumes := make(map[string]bool)
	for _, v := range p.template.Spec.Volumes {
		volumes[v.Name] = true
		if v.Secret == nil || v.Secret.SecretName == "" {
			report(p.owner, "volume %s has no secret", v.Name)
		}
	}
	for _, claim := range p.claims {
		volumes[claim.Name] = true
		if len(claim.Spec.AccessModes) == 0 || claim.Spec.Resources.Requests.Storage().IsZero() {
			report(p.owner, "claim %s has no access mode or no size", claim.Name)
		}
	}
	if len(p.template.Spec.Containers) == 0 {
		report(p.owner, "no containers")
	}
	for _, c := range p.template.Spec.Containers {
		if c.Name == "" || c.Image == "" {
			report(p.owner, "a container has no name or no image")
		}
		for _, mount := range c.VolumeMounts {
			if !volumes[mount.Name] || !strings.HasPrefix(mount.MountPath, "/") {
				report(p.owner, "mount %s at %q: there is no such volume, or no such path", mount.Name, mount.MountPath)
			}
		}
		for name, probe := range map[string]*corev1.Probe{"startup": c.StartupProbe, "liveness": c.LivenessProbe, "readiness": c.ReadinessProbe} {
			p.checkProbe(name, probe, report)
		}
		if c.LivenessProbe == nil || c.ReadinessProbe == nil {
			report(p.owner, "container %s lacks a liveness or a readiness probe", c.Name)
		}
		if c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().Cmp(*c.Resources.Requests.Memory()) < 0 {
			report(p.owner, "container %s: the limit of its memory is below what it requests", c.Name)
		}
	}
}

func (p pod) checkProbe(name string, probe *corev1.Probe, report reporter) {
	switch {
	case probe == nil:
	case probe.HTTPGet == nil:
		report(p.owner, "%s probe: no httpGet", name)
	case !p.hasPort(probe.HTTPGet.Port.StrVal):
		report(p.owner, "%s probe: no container has the port %q", name, probe.HTTPGet.Port.StrVal)
	case probe.HTTPGet.Path != "/healthz" && probe.HTTPGet.Path != "/readyz":
		report(p.owner, "%s probe: the program does not serve %q", name, probe.HTTPGet.Path)
	}
}

// hasPort reports whether a container has a port of that name.
func (p pod) hasPort(name string) bool {
	for _, c := range p.template.Spec.Containers {
		for _, port := range c.Ports {
			if name != "" && port.Name == name && port.ContainerPort > 0 && len(validation.IsValidPortName(name)) == 0 {
				return true
			}
		}
	}
	return false
}

var variable = regexp.MustCompile(`\$\(([^)]*)\)`)

// checkArguments reports arguments that are no flags of the program, and variables that are not
// set.
func (p pod) checkArguments(usage string, report reporter) {
	for _, c := range p.template.Spec.Containers {
		set := make(map[string]bool)
		for _, env := range c.Env {
			set[env.Name] = true
		}
		for _, argument := range c.Args {
			name, _, _ := strings.Cut(argument, "=")
			if !regexp.MustCompile(`(?m)^  ` + regexp.QuoteMeta(name) + `( |$)`).MatchString(usage) {
				report(p.owner, "the program has no flag %s", name)
			}
			for _, used := range variable.FindAllStringSubmatch(argument, -1) {
				if !set[used[1]] {
					report(p.owner, "%s: the variable %s is not set", argument, used[1])
				}
			}
		}
	}
}

// checkReferences reports objects that select no pods, or name what does not exist.
func (m *manifests) checkReferences(report reporter) {
	headless := make(map[string]bool)
	for _, s := range m.services {
		owner := "Service " + s.Name
		headless[s.Name] = s.Spec.ClusterIP == corev1.ClusterIPNone && s.Spec.PublishNotReadyAddresses
		for _, p := range m.selected(owner, s.Spec.Selector, report) {
			for _, port := range s.Spec.Ports {
				if !p.hasPort(port.TargetPort.StrVal) || port.Port <= 0 {
					report(owner, "%s has no port %q", p.owner, port.TargetPort.StrVal)
				}
			}
		}
	}
	for _, s := range m.statefulSets {
		owner := "StatefulSet " + s.Name
		if !headless[s.Spec.ServiceName] {
			report(owner, "serviceName %q is no headless Service that publishes addresses that are not ready", s.Spec.ServiceName)
		}
		if s.Spec.PodManagementPolicy != appsv1.ParallelPodManagement {
			report(owner, "podManagementPolicy must be Parallel")
		}
		checkRetention(owner, s.Spec.PersistentVolumeClaimRetentionPolicy, report)
		m.expectOwn(owner, s.Spec.Selector, &s.Spec.Template, report)
	}
	for _, d := range m.deployments {
		m.expectOwn("Deployment "+d.Name, d.Spec.Selector, &d.Spec.Template, report)
	}
	for _, b := range m.budgets {
		owner := "PodDisruptionBudget " + b.Name
		if (b.Spec.MinAvailable == nil) == (b.Spec.MaxUnavailable == nil) {
			report(owner, "needs one of minAvailable and maxUnavailable")
		}
		m.selectedBy(owner, b.Spec.Selector, report)
	}
	for _, n := range m.policies {
		owner := "NetworkPolicy " + n.Name
		for _, p := range m.selectedBy(owner, &n.Spec.PodSelector, report) {
			for _, rule := range n.Spec.Ingress {
				for _, port := range rule.Ports {
					if port.Port == nil || !p.hasPort(port.Port.StrVal) {
						report(owner, "%s has no port %v", p.owner, port.Port)
					}
				}
				for _, peer := range rule.From {
					m.selectedBy(owner, peer.PodSelector, report)
				}
			}
		}
	}
}

// checkRetention reports values that whenDeleted and whenScaled do not have. The schemas have no
// enumeration of them.
func checkRetention(owner string, p *appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy, report reporter) {
	if p == nil {
		return
	}
	allowed := []appsv1.PersistentVolumeClaimRetentionPolicyType{"", appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType}
	if !slices.Contains(allowed, p.WhenDeleted) || !slices.Contains(allowed, p.WhenScaled) {
		report(owner, "persistentVolumeClaimRetentionPolicy: whenDeleted and whenScaled must be Retain or Delete")
	}
}

// expectOwn reports if an object does not select exactly the pods that it makes.
func (m *manifests) expectOwn(owner string, selector *metav1.LabelSelector, own *corev1.PodTemplateSpec, report reporter) {
	for _, p := range m.selectedBy(owner, selector, report) {
		if p.template != own {
			report(owner, "selects pods of %s, too", p.owner)
		}
	}
}

func (m *manifests) selectedBy(owner string, selector *metav1.LabelSelector, report reporter) []pod {
	if selector == nil {
		report(owner, "no selector")
		return nil
	}
	return m.selected(owner, selector.MatchLabels, report)
}

// selected returns the pods with some labels, and reports if there are none.
func (m *manifests) selected(owner string, labels map[string]string, report reporter) (pods []pod) {
	for _, p := range m.pods {
		matches := len(labels) > 0
		for key, value := range labels {
			matches = matches && p.template.Labels[key] == value
		}
		if matches {
			pods = append(pods, p)
		}
	}
	if len(pods) == 0 {
		report(owner, "selects no pods with %v", labels)
	}
	return pods
}
