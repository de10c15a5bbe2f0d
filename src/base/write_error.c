/* write_error.c -- the way out of a failed write, by errno. */
#include "base/write_error.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct {
    int code;
    const char *way_out;
} ways_out[] = {
    {ENOSPC, "free space on that disk"},
    {EDQUOT, "free space within the quota of this user, or have it raised"},
    {EFBIG, "raise the limit of the size of a file (ulimit -f), or use another file system"},
    {EROFS, "mount that file system for writing, or choose another folder"},
    {EACCES, "give this user permission to write there, or choose another folder"},
    {EPERM, "give this user permission to write there, or choose another folder"},
    {EIO, "check that disk (dmesg shows its faults), or choose a folder on another one"},
    {ENOENT, "make the folder, or mount its disk: it is not there"},
    {ENOTDIR, "move the file away that is in the place of its folder"},
    {ESTALE, "mount that file system again: its server has lost the folder"},
    {EMFILE, "raise the limit of open files (ulimit -n)"},
    {ENFILE, "raise the limit of open files of this machine (sysctl fs.file-max)"},
};

const char *write_error_text(int code)
{
    static _Thread_local char text[256];
    const char *way_out = NULL;
    for (size_t i = 0; i < sizeof ways_out / sizeof *ways_out; i++)
        if (ways_out[i].code == code) way_out = ways_out[i].way_out;
    snprintf(text, sizeof text, "%s%s%s", strerror(code), way_out ? "; " : "",
             way_out ? way_out : "");
    return text;
}
