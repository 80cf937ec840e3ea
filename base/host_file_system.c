#include "base/host.h"

#include <stdio.h>
#include <string.h>
#include <sys/statfs.h>
#include <unistd.h>

enum kind { LOCAL, NETWORK, MEMORY };

/* Magic numbers of linux/magic.h and of the file systems themselves. */
static const struct {
    unsigned long magic;
    const char *name;
    enum kind kind;
} types[] = {
    {0xEF53, "ext4", LOCAL},        {0x58465342, "xfs", LOCAL},        {0x9123683E, "btrfs", LOCAL},
    {0x794C7630, "overlay", LOCAL}, {0x2FC12FC1, "zfs", LOCAL},        {0xF2F52010, "f2fs", LOCAL},
    {0x3153464A, "jfs", LOCAL},     {0xCA451A4E, "bcachefs", LOCAL},   {0x4D44, "vfat", LOCAL},
    {0x2011BAB0, "exfat", LOCAL},   {0x73717368, "squashfs", LOCAL},   {0x01021994, "tmpfs", MEMORY},
    {0x858458F6, "ramfs", MEMORY},  {0x6969, "nfs", NETWORK},          {0xFF534D42, "cifs", NETWORK},
    {0xFE534D42, "smb2", NETWORK},  {0x0BD00BD0, "lustre", NETWORK},   {0x47504653, "gpfs", NETWORK},
    {0x00C36400, "ceph", NETWORK},  {0x19830326, "beegfs", NETWORK},   {0x65735546, "fuse", NETWORK},
    {0x01021997, "9p", NETWORK},    {0x6A656A63, "virtiofs", NETWORK}, {0x5346414F, "afs", NETWORK},
    {0x7461636F, "ocfs2", NETWORK}, {0x01161970, "gfs2", NETWORK},     {0x20030528, "orangefs", NETWORK},
    {0xAAD7AAEA, "panfs", NETWORK},
};

/* The index in the table, or its length. The type is sign-extended on some machines. */
static size_t find_type(int64_t type) {
    size_t i = 0;
    while (i < sizeof types / sizeof types[0] && types[i].magic != ((unsigned long)type & 0xFFFFFFFF))
        i++;
    return i;
}

bool rk_file_system_is_local(int64_t type) {
    size_t found = find_type(type);
    return found < sizeof types / sizeof types[0] && types[found].kind != NETWORK;
}

void rk_host_file_system(const char *path, struct rk_file_system *file_system) {
    *file_system = (struct rk_file_system){.free_bytes = -1, .network = true};
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", path[0] != '\0' ? path : ".");
    struct statfs information;
    while (statfs(folder, &information) != 0) {
        char *slash = strrchr(folder, '/');
        if (strcmp(folder, "/") == 0 || strcmp(folder, ".") == 0)
            return;
        if (slash == NULL)
            snprintf(folder, sizeof folder, ".");
        else
            slash[slash == folder] = '\0';
    }
    snprintf(file_system->folder, sizeof file_system->folder, "%.255s", folder);
    file_system->free_bytes = (int64_t)information.f_bavail * (int64_t)information.f_bsize;
    file_system->writable = access(folder, W_OK) == 0;
    size_t found = find_type((int64_t)information.f_type);
    if (found == sizeof types / sizeof types[0]) {
        snprintf(file_system->type, sizeof file_system->type, "0x%lx", (unsigned long)information.f_type & 0xFFFFFFFF);
        return;
    }
    snprintf(file_system->type, sizeof file_system->type, "%s", types[found].name);
    file_system->network = types[found].kind == NETWORK;
    file_system->memory = types[found].kind == MEMORY;
}
