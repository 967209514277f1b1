#!/bin/sh
# Makes the certificates and keys of tests/tls_config.rs, valid for 100 years, in this folder.
# They protect nothing. Needs openssl 3.
set -eu
cd "$(dirname "$0")"

# Without the extensions of the system's configuration.
printf '[req]\ndistinguished_name=name\n[name]\n' > openssl.cnf

# certificate NAME: a certificate of NAME-pkcs8.key, signed by itself.
certificate() {
    openssl req -x509 -config openssl.cnf -new -key "$1-pkcs8.key" -out "$1.pem" -days 36500 \
        -subj "/CN=$1.example.org" -addext "subjectAltName=DNS:$1.example.org"
}

openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out rsa-pkcs8.key
openssl pkey -in rsa-pkcs8.key -traditional -out rsa-pkcs1.key
certificate rsa

openssl ecparam -name prime256v1 -genkey -out p256-sec1.key
openssl pkcs8 -topk8 -nocrypt -in p256-sec1.key -out p256-pkcs8.key
certificate p256

openssl ecparam -name secp384r1 -genkey -noout -out p384-sec1.key
openssl pkcs8 -topk8 -nocrypt -in p384-sec1.key -out p384-pkcs8.key
certificate p384

openssl genpkey -algorithm ED25519 -out ed25519-pkcs8.key
certificate ed25519

# Keys that are refused.
openssl pkey -in p256-pkcs8.key -aes256 -passout pass:secret -out encrypted-pkcs8.key
openssl rsa -in rsa-pkcs8.key -traditional -aes256 -passout pass:secret \
    -out encrypted-pkcs1.key
openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:1024 -out rsa1024-pkcs8.key
openssl pkey -in rsa1024-pkcs8.key -traditional -out rsa1024-pkcs1.key
openssl ecparam -name secp256k1 -genkey -noout -out secp256k1-sec1.key
openssl genpkey -algorithm ED448 -out ed448-pkcs8.key

# A certificate without extensions, so of version 1, which is refused.
openssl req -config openssl.cnf -new -key p256-pkcs8.key -subj "/CN=old.example.org" -out old.csr
openssl x509 -req -in old.csr -signkey p256-pkcs8.key -days 36500 -out version1.pem

# An authority, a certificate of it, and OCSP responses about it: one for 100 years, one without an
# end.
openssl ecparam -name prime256v1 -genkey -noout -out ca.key
openssl req -x509 -config openssl.cnf -new -key ca.key -out ca.pem -days 36500 \
    -subj "/CN=Test CA" -addext "basicConstraints=critical,CA:TRUE"
openssl req -config openssl.cnf -new -key p256-pkcs8.key -subj "/CN=stapled.example.org" \
    -out stapled.csr
printf 'subjectAltName=DNS:stapled.example.org\n' > stapled.ext
openssl x509 -req -in stapled.csr -CA ca.pem -CAkey ca.key -set_serial 4097 -days 36500 \
    -extfile stapled.ext -out stapled.pem
printf 'V\t991231235959Z\t\t1001\tunknown\t/CN=stapled.example.org\n' > index.txt
openssl ocsp -issuer ca.pem -cert stapled.pem -no_nonce -reqout request.der
openssl ocsp -index index.txt -rsigner ca.pem -rkey ca.key -CA ca.pem -reqin request.der \
    -ndays 36500 -respout stapled.ocsp
openssl ocsp -index index.txt -rsigner ca.pem -rkey ca.key -CA ca.pem -reqin request.der \
    -respout stapled-unlimited.ocsp
rm -f openssl.cnf ./*.csr ./*.ext index.txt* request.der ca.key
