object d106baa0fd111dd2f053d980b9ab44aaa2d8ff27
type commit
tag openpgp
tagger Release <release@example.com> 1795261753 +0000

OpenPGP
-----BEGIN PGP SIGNATURE-----

iIoEABYIADIWIQRCDbO+NqNBW836uhN7A0rmvOeo7wUCawGFORQccmVsZWFzZUBl
eGFtcGxlLmNvbQAKCRB7A0rmvOeo7/rgAP9xyqTEyXKpRKui2zn5/lRCCrt7E7DQ
dJWU0Z44d+rA8AD+OTSIAWoLtGDEEq00Er8a3V7HbR5B1/8pQ3S0pjjclwY=
=h/zf
-----END PGP SIGNATURE-----
