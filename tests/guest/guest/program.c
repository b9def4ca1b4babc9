#include "program.h"
#include "agent.h"
#include "cpus.h"
#include "disk.h"
#include "toil.h"
#include "vsock.h"

#define PAGE 4096
/* Memory that nothing else uses: a page for each place, and what is filled. */
#define PLACES 0x1000000
#define MOST_PLACES 4096
#define FILLED 0x2000000

static uint8_t renewal[ROOM], block[BLOCK];
static uint32_t renewal_length;

void program_renew(struct text request)
{
    memcpy(renewal, request.at, request.length);
    renewal_length = request.length;
}

/* A block, or as much of a page, with a word in it. */
static void put_word(uint8_t *at, struct text word)
{
    memset(at, 0, BLOCK);
    memcpy(at, word.at, word.length < BLOCK ? word.length : BLOCK);
}

static struct text word_at(const uint8_t *at)
{
    struct text word = {at, 0};
    while (word.length < BLOCK && at[word.length] != 0)
        word.length++;
    return word;
}

static uint8_t *place(uint64_t number)
{
    return (uint8_t *)(PLACES + number % MOST_PLACES * PAGE);
}

void program_prepare(void)
{
    put_word(place(0), TEXT("parent"));
    put_word(block, TEXT("parent"));
    disk_transfer(DISK_WRITE, 0, block);
}

static void say_words(const struct call *call, const struct text *words, unsigned count)
{
    static uint8_t bytes[ROOM];
    uint32_t length = 0;
    for (unsigned at = 0; at < count; at++) {
        memcpy(bytes + length, words[at].at, words[at].length);
        length += words[at].length;
        bytes[length++] = at + 1 < count ? ' ' : '\n';
    }
    write_out(call->connection, STDOUT, (struct text){bytes, length});
}

/* Says a string that the renewal has under this name. */
static void say_renewed(const struct call *call, struct text name)
{
    static uint8_t bytes[ROOM];
    struct text all = {renewal, renewal_length};
    while (cut_to(&all, TEXT("\""))) {
        if (!cut(&all, name) || !cut(&all, TEXT("\":")))
            continue;
        struct text value = unescaped(cut_string(&all), bytes);
        say_words(call, &value, 1);
        return exited(call, 0);
    }
    exited(call, 1);
}

static void run_true(const struct call *call)
{
    exited(call, 0);
}

static void run_exit(const struct call *call)
{
    exited(call, number_of(call->argument));
}

static void run_echo(const struct call *call)
{
    say_words(call, call->words + 1, call->count - 1);
    exited(call, 0);
}

static void run_cat(const struct call *call)
{
    struct text rest = call->rest;
    if (cut_to(&rest, TEXT("\"stdio\":\"output\"")))
        return exited(call, 0);
    go_on(call, HEARING, 0);
}

static void run_sleep(const struct call *call)
{
    if (call->count > 2)
        say_words(call, call->words + 2, 1);
    go_on(call, SLEEPING, number_of(call->argument));
}

static void run_yes(const struct call *call)
{
    go_on_saying(call, number_of(call->argument));
}

static void run_remember(const struct call *call)
{
    put_word(place(number_of(call->argument)), call->count > 2 ? call->words[2] : TEXT(""));
    exited(call, 0);
}

static void run_recall(const struct call *call)
{
    struct text word = word_at(place(number_of(call->argument)));
    say_words(call, &word, 1);
    exited(call, 0);
}

static void run_write(const struct call *call)
{
    put_word(block, call->count > 2 ? call->words[2] : TEXT(""));
    exited(call, disk_transfer(DISK_WRITE, number_of(call->argument), block) ? 0 : 1);
}

static void run_read(const struct call *call)
{
    if (!disk_transfer(DISK_READ, number_of(call->argument), block))
        return exited(call, 1);
    struct text word = word_at(block);
    say_words(call, &word, 1);
    exited(call, 0);
}

static void run_fill(const struct call *call)
{
    uint64_t end = FILLED + (number_of(call->argument) << 20);
    for (uint64_t at = FILLED; at < end; at += PAGE)
        *(volatile uint64_t *)at = at;
    exited(call, 0);
}

static void run_toil(const struct call *call)
{
    go_on(call, TOILING, 0);
    toil_begin();
}

static void say_number(const struct call *call, uint64_t number)
{
    uint8_t bytes[20];
    struct text text = {bytes, digits(number, bytes)};
    say_words(call, &text, 1);
}

static void run_check(const struct call *call)
{
    enum toil seen = toil_look();
    say_number(call, toil_rounds());
    exited(call, seen);
}

static void run_gap(const struct call *call)
{
    say_number(call, ticks());
    say_number(call, toil_gap());
    exited(call, 0);
}

static void run_nproc(const struct call *call)
{
    say_number(call, cpus_count());
    exited(call, 0);
}

static void run_hostname(const struct call *call)
{
    say_renewed(call, TEXT("hostname"));
}

static void run_printenv(const struct call *call)
{
    say_renewed(call, call->argument);
}

static const struct {
    struct text name;
    run_t *run;
} programs[] = {
    {TEXT("echo"), run_echo},         {TEXT("true"), run_true},         {TEXT("sync"), run_true},
    {TEXT("exit"), run_exit},         {TEXT("cat"), run_cat},           {TEXT("sleep"), run_sleep},
    {TEXT("yes"), run_yes},           {TEXT("remember"), run_remember}, {TEXT("recall"), run_recall},
    {TEXT("write"), run_write},       {TEXT("read"), run_read},         {TEXT("fill"), run_fill},
    {TEXT("toil"), run_toil},         {TEXT("check"), run_check},       {TEXT("hostname"), run_hostname},
    {TEXT("printenv"), run_printenv}, {TEXT("gap"), run_gap},
    {TEXT("nproc"), run_nproc},
};

run_t *program_find(struct text name)
{
    for (unsigned at = 0; at < sizeof programs / sizeof *programs; at++)
        if (equal(name, programs[at].name))
            return programs[at].run;
    return NULL;
}
