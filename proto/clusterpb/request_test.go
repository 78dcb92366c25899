package clusterpb_test

import (
	"reflect"
	"testing"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A field added to the schema must be added to ShallowCopy.
func TestShallowCopy_CopiesEveryField(t *testing.T) {
	original := &clusterpb.Request{Call: &clusterpb.Request_Get{Get: new(clusterpb.GetRequest)}}
	fields := reflect.ValueOf(original).Elem()
	for i := range fields.NumField() {
		field := fields.Field(i)
		if !fields.Type().Field(i).IsExported() || !field.IsZero() {
			continue
		}
		switch field.Kind() {
		case reflect.Bool:
			field.SetBool(true)
		case reflect.Uint32, reflect.Uint64:
			field.SetUint(1)
		case reflect.String:
			field.SetString("text")
		case reflect.Slice:
			field.Set(reflect.MakeSlice(field.Type(), 1, 1))
		case reflect.Pointer:
			field.Set(reflect.New(field.Type().Elem()))
		default:
			t.Fatalf("no value for %s", fields.Type().Field(i).Name)
		}
	}
	replica := reflect.ValueOf(original.ShallowCopy()).Elem()
	for i := range fields.NumField() {
		if field := fields.Type().Field(i); field.IsExported() && !reflect.DeepEqual(replica.Field(i).Interface(), fields.Field(i).Interface()) {
			t.Errorf("%s is %v, want %v", field.Name, replica.Field(i), fields.Field(i))
		}
	}
}
