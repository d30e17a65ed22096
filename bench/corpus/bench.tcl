# Lists, dictionaries, strings, regular expressions, procedures and arithmetic of the Tcl interpreter: bench.tcl N
proc fibonacci {n} { expr {$n < 2 ? $n : [fibonacci [expr {$n - 1}]] + [fibonacci [expr {$n - 2}]]} }
proc words {text} {
    set counts [dict create]
    foreach word [regexp -all -inline {[a-z]+} $text] { dict incr counts $word }
    return $counts
}
set n [lindex $argv 0]
set names {alpha beta gamma delta epsilon zeta eta theta iota kappa}
set text {}
for {set i 0} {$i < $n} {incr i} { append text [lindex $names [expr {$i * 7 % 10}]] [string repeat " " [expr {$i % 3 + 1}]] }
set counts [words $text]
foreach name [lsort [dict keys $counts]] { puts "$name [dict get $counts $name]" }
set table {}
for {set i 0} {$i < $n} {incr i} { lappend table [list [expr {($i * 7919) % 1009}] "key[expr {$i % 97}]" [expr {sqrt($i)}]] }
set sorted [lsort -integer -index 0 [lsort -index 1 $table]]
array set sums {}
foreach row $sorted {
    lassign $row number key root
    if {![info exists sums($key)]} { set sums($key) 0 }
    set sums($key) [expr {$sums($key) + $number * ($number % 3 == 0 ? 2 : 1) + int($root)}]
}
foreach key [lsort -dictionary [array names sums]] { puts [format "%-8s %d" $key $sums($key)] }
set changed [string map {alpha ALPHA gamma G} [regsub -all {(t+)(a)} $text {\2\1}]]
puts "[string length $changed] [llength [split $changed t]] [fibonacci [expr {10 + $n / 2000}]]"
set stack {}
foreach token [split "3 4 + 2 * 7 / 5 - 9 8 * +" " "] {
    switch -regexp -- $token {
        {^[0-9]+$} { lappend stack $token }
        default { set b [lindex $stack end]; set a [lindex $stack end-1]; set stack [lreplace $stack end-1 end [expr "$a $token $b"]] }
    }
}
puts $stack
