# Perl's work without modules: hashes, arrays, regular expressions, sorting, closures, objects, text.
# perl bench.pl [N]
my $n = shift // 30000;

package Counter;
sub new { my ($class, %of) = @_; return bless { step => 1, %of, sum => 0 }, $class }
sub add { my $self = shift; $self->{sum} += $self->{step} * $_ for @_; return $self }
package Doubled;
our @ISA = ('Counter');
sub add { my ($self, @list) = @_; return $self->SUPER::add(map { 2 * $_ } @list) }

package main;
my (%count, @words, $text);
for my $i (1 .. $n) {
    my $word = 'k' . ($i * 7919 % 1009);
    $count{$word}++;
    push @words, $word if $i % 7 == 0;
    $text .= substr($word, 1, 2) . ($i % 10 ? ' ' : "\n");
    if ($word =~ /^k(\d)(\d*)7$/) { $count{"$1-7"} += length $2 }
    (my $other = $word) =~ s/(\d)(\d)/$2$1/g;
    $count{swapped}++ if $other lt $word;
    $other =~ tr/0-9/a-j/;
    $count{ uc $other } .= 'x';
}
my @sorted = sort { $count{$b} <=> $count{$a} || $a cmp $b } grep { /^k/ } keys %count;
my ($lines, %lengths) = (0);
for my $line (split /\n/, $text) {
    my @fields = split ' ', $line;
    $lines++; $lengths{@fields}++;
    my $joined = join ',', reverse map { sprintf '%03d', $_ } @fields;
    $count{pairs}++ while $joined =~ /(?<!\d)0(\d)\d,(?=\d\1)/g;
}
my @counters = (Counter->new(step => 3), Doubled->new);
$_->add(1 .. 5)->add(7) for @counters, (@counters) x ($n / 100);
my %memo;
my $paths; $paths = sub { my ($x, $y) = @_; return 1 unless $x && $y; $memo{$x, $y} //= $paths->($x - 1, $y) + $paths->($x, $y - 1) };
my $sum = 0;
for (my $i = 0; $i < $n; $i++) { next if $i & 1; $sum ^= $i << 3; $sum += int(sqrt $i); last if $sum < 0 }
my $packed = pack 'N*', map { $_ * 17 } 1 .. 100;
printf "%s %s %d %d %d %d %s %d %d %d %s\n", @sorted[0, -1], $lines, $count{pairs}, $count{swapped}, $counters[0]{sum}, $counters[1]{sum}, $paths->(14, 14), $sum,
    unpack('%32N*', $packed), join '/', map { "$_=$lengths{$_}" } sort { $a <=> $b } keys %lengths;
