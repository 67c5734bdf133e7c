#!/bin/sh
# The entry point of a container image: reads the list of the image ahead, and becomes the command.
#
#   COPY start.list entrypoint.sh /
#   ENTRYPOINT ["/entrypoint.sh"]
#   CMD ["python3", "/app/app.py"]
#
# The list is made in the image, where its files have the times that they have there:
#   wstrace run -o x.wst -- python3 /app/app.py && wstrace prefetch x.wst -o /start.list
# Without wstrace, or without a list that can be used, the command runs all the same.
if command -v wstrace >/dev/null 2>&1; then
    exec wstrace prefetch --apply "${PREFETCH_LIST:-/start.list}" -q -- "$@"
fi
exec "$@"
