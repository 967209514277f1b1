#!/bin/sh
# Builds the image of the entry. HttpArena runs this file in place of `docker build`, because the
# image is made of the whole repository, which is not in the folder of the entry.
set -eu
cd "$(dirname "$(readlink -f "$0")")/../.."
exec docker build -t httparena-onrush -f bench/httparena/Dockerfile .
