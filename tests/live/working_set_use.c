/* Maps FILE, writes all its PAGES and as many anonymous ones, then obeys lines on stdin: "FIRST N" = from now on use the
   N pages from FIRST on of both, again and again; it answers with a line after the first time round. With a
   third word they are locked, where that is allowed: nothing takes them away while they are looked at, as DAMON may. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef PAGE_BYTES
#define PAGE_BYTES 4096
#endif

int main(int count, char **words) {
  long pages = atol(words[2]), first = 0, n = 0, at;
  int fd = open(words[1], O_RDWR);
  volatile char *file = mmap(0, pages * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  volatile char *anon = mmap(0, pages * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  /* also of a file: a large folio of 2 MiB is mapped by one entry, which has one bit for all of it */
  madvise((void *)file, pages * PAGE_BYTES, MADV_NOHUGEPAGE);
  madvise((void *)anon, pages * PAGE_BYTES, MADV_NOHUGEPAGE);
  for (at = 0; at < pages; at++) file[at * PAGE_BYTES] = anon[at * PAGE_BYTES] = 1;
  if (count > 3 && (mlock((void *)file, pages * PAGE_BYTES) || mlock((void *)anon, pages * PAGE_BYTES))) perror("mlock");
  puts("ready");
  fflush(stdout);
  for (;;) {
    struct pollfd in = {0, POLLIN, 0};
    int ready = poll(&in, 1, 5);
    if (ready && scanf("%ld %ld", &first, &n) != 2) return 0;
    for (at = first; at < first + n; at++) (void)file[at * PAGE_BYTES], (void)anon[at * PAGE_BYTES];
    if (ready) puts("using"), fflush(stdout);
  }
}
