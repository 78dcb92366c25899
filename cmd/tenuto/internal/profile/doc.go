// Package profile reads and writes the file with the profiles of the command: named sets of
// connection flags.
//
//	{
//	  "current": "shop",
//	  "profiles": {
//	    "shop": {"addr": "10.0.0.1:7000,10.0.0.2:7000", "ca": "ca.crt", "cert": "me.crt", "key": "me.key"}
//	  }
//	}
//
// The fields of a profile are texts and have the names of the flags. Paths are relative to the
// directory of the file. A file that is not of this form is rejected with an error that names the
// line and the field.
package profile
